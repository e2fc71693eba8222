"""Read the job file of a cluster as a spec, and export a request as the document for another cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from compose_sim.app.request import Request, find_program, name_after
from compose_sim.core.plan.capacity import with_default_size
from compose_sim.core.plan.defaults import find_cluster
from compose_sim.core.plan.model import Program, copied_name
from compose_sim.core.request.job_files import Change, Exported, JobFile, Note
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import first_problem
from compose_sim.core.text import nearest_file
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.engine.project_files import read_project_file
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import changes_of, job_of
from compose_sim.plugins.job_files.core.exports.targets import TARGETS, Target, own_changes
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


def export(request: Request, target_name: str, *, accelerator: str) -> Exported:
    """Return the document; raise SpecError if the spec cannot be met on this kind of cluster."""
    spec, target = with_default_size(request.spec), TARGETS[target_name]
    _check_recipe(spec, target_name, target)
    if cluster := find_cluster(target_name):
        cluster.check_exported(spec)
    if target.needs_image and spec.image in ("auto", "host"):
        raise SpecError(
            f"the image '{spec.image}' exists on this machine only, and a {target_name} pulls its image from a registry",
            hint=f"composesim export {target_name} --image registry.example.com/team/train:1 …",
        )
    program = find_program(spec, find_recipe(spec.recipe), request.folder)
    if not program.is_module:
        program = _inside_project(program)
    job = job_of(
        spec,
        program,
        name=spec.name or name_after(program.target, is_module=program.is_module),
        image=spec.image,
        accelerator=accelerator,
        variables=request.env_files,
    )
    script = Path(os.path.abspath(request.folder / program.target))
    source = "" if program.is_module else read_project_file(script, request.folder).decode("utf-8", "replace")
    changes = changes_of(spec, job, keeps=target.keeps, needs_image=target.needs_image, source=source)
    return Exported(
        target=target_name,
        text=target.write(job),
        changes=(*own_changes(target, job), *changes, *_left_behind(request)),
        submit=target.submit,
    )


def _left_behind(request: Request) -> list[Change]:
    """Return what the job does not keep of the job file that it is made from."""
    return [
        Change(
            what=f"line {note.line}, {note.key}",
            text=note.text if note.verdict == "changed" else "not part of the new job",
        )
        for note in (request.job_file.notes if request.job_file else ())
        if note.verdict != "taken"
    ]


def _check_recipe(spec: ClusterSpec, name: str, target: Target) -> None:
    if spec.recipe != target.recipe:
        fitting = next((other for other, each in TARGETS.items() if each.recipe == spec.recipe), "")
        raise SpecError(
            f"'{name}' runs the recipe '{target.recipe}', and this is '{spec.recipe}'",
            hint=f"composesim export {fitting} …" if fitting else f"composesim render DIR --recipe {spec.recipe} …",
        )


def _inside_project(program: Program) -> Program:
    """Return the program with the script's path in the project, which is the same on the cluster."""
    path = Path(os.path.abspath(Path(program.folder, program.target)))
    if not path.is_relative_to(program.folder):
        raise SpecError(
            f"the script '{path}' is outside the project '{program.folder}', which is all that the cluster gets",
            hint=f"cd {path.parent} && composesim export …",
        )
    return replace(program, target=copied_name(program))
