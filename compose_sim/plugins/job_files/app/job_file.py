"""Read the job file of a cluster as a spec, with its script found in the project."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from compose_sim.core.request.job_files import JobFile, Note
from compose_sim.core.request.spec_file import first_problem
from compose_sim.core.spelling import nearest_file
from compose_sim.plugins.job_files.core.imports.kinds import is_job_file, read_job_file

__all__ = ["is_job_file", "read_job"]


def read_job(text: str, source: str, variables: Mapping[str, str], given: Mapping[str, Any], folder: Path) -> JobFile:
    """Return the job as a spec. `given` are the flags; raises SpecError with the line of what cannot be honored."""
    has_program = any(given.get(key) is not None for key in ("script", "module"))
    job = read_job_file(text, source, variables, has_program=has_program)
    if problem := first_problem(job.values):
        raise job.error(str(next(iter(problem.path), "script")), problem.with_key, hint=problem.hint)
    job = _with_flags(job, given, has_program=has_program)
    if has_program:
        own = {key: value for key, value in job.values.items() if (key, value) != ("recipe", "exec")}
        return replace(job, values=own)
    if "script" not in job.values and "module" not in job.values:
        raise job.error("nodes", f"a {job.kind} names no script", hint=f"composesim up -f {source} train.py")
    return job if job.values.get("recipe") == "exec" or "module" in job.values else _with_script(job, folder)


def _with_flags(job: JobFile, given: Mapping[str, Any], *, has_program: bool) -> JobFile:
    """Return the job with a note that it does not count for each value that a flag replaces."""
    replaced = {key for key, value in given.items() if value is not None and key != "env"}
    replaced |= {"script", "module", "args"} if has_program else set()
    notes = (
        replace(note, verdict="ignored", text=f"{note.text}: the command line counts")
        if note.verdict == "taken" and note.text.partition(" ")[0] in replaced
        else note
        for note in job.notes
    )
    return replace(job, notes=tuple(notes))


def _with_script(job: JobFile, folder: Path) -> JobFile:
    """Return the job with the path of its script in the project: the file with the most parts of the path in the job file."""
    named = PurePosixPath(job.values["script"])
    parts = [part for part in named.parts if part not in ("/", ".", "..")]
    ends = [PurePosixPath(*parts[first:]) for first in range(len(parts))]
    if (folder / named).is_file():
        return job
    found = next((str(end) for end in ends if (folder / end).is_file()), None)
    if found is None:
        near = nearest_file(named.name, [path.name for path in folder.glob("*.py")])
        words = ["composesim", "plan", "-f", job.source, near or named.name, *job.values.get("args", ())]
        raise job.error(
            "script",
            f"the script '{named}' is not in the project '{folder}', which nodes mount"
            + (f"; did you mean '{near}'?" if near else ""),
            hint=f"cd PROJECT, or name it: {shlex.join(words)}",
        )
    note = Note(
        verdict="changed",
        key="script",
        line=job.lines["script"],
        text=f"script {found}: '{named}' is a path on the cluster",
    )
    notes = tuple(sorted((*job.notes, note), key=lambda each: each.line))
    return replace(job, values={**job.values, "script": found}, notes=notes)
