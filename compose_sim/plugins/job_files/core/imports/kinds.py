"""Tell from its content what kind of job file a text is, and read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compose_sim.core.request.job_files import JobFile
from compose_sim.core.request.yaml_source import YamlText, error_at, read_documents
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import KINDS
from compose_sim.plugins.job_files.core.imports import kubernetes, tasks
from compose_sim.plugins.job_files.core.imports.draft import Draft, Object
from compose_sim.plugins.job_files.core.imports.pods import REASONS
from compose_sim.plugins.job_files.core.imports.slurm import directives_of, read_sbatch

Reader = Callable[[Object, Sequence[YamlText]], None]

_READERS: Mapping[str, Reader] = {
    "jobset": kubernetes.read_jobset,
    "trainjob": kubernetes.read_trainjob,
    "pytorchjob": kubernetes.read_pytorchjob,
    "volcano": kubernetes.read_volcano,
    "mpijob": kubernetes.read_mpijob,
    "rayjob": kubernetes.read_rayjob,
    "raycluster": kubernetes.read_raycluster,
}
_BY_KIND = {KINDS[name]: reader for name, reader in _READERS.items()}
_OF_SKYPILOT = ("run", "num_nodes", "setup", "workdir", "file_mounts")
# A key at the start of a line that no composesim.yaml has.
_OTHER_KEY = re.compile(rf"^['\"]?(apiVersion|services|resources|{'|'.join(_OF_SKYPILOT)})['\"]?\s*:", re.MULTILINE)

_LONG_NUMBER = re.compile(r"(?<!\d)\d{1001}")  # Python does not convert it


def is_job_file(text: str) -> bool:
    """Return whether a text is the job file of a cluster, and not a spec of composesim."""
    return bool(directives_of(text) or text.startswith("#!") or _OTHER_KEY.search(text))


def read_job_file(text: str, source: str, variables: Mapping[str, str], *, has_program: bool = False) -> JobFile:
    """
    Return the spec that a job file stands for. `variables` are those of whoever submits a script; with `has_program`, the file
    need not name a program.

    Raises SpecError, with the line, for an unknown kind or version, and for a value that cannot be honored.
    """
    if long := _LONG_NUMBER.search(text):
        raise error_at(source, text, text.count("\n", 0, long.start()) + 1, "a number has more than 1,000 digits")
    draft = Draft(source=source, text=text, has_program=has_program)
    if directives_of(text) or text.startswith("#!"):
        return read_sbatch(draft, variables)
    documents = read_documents(text, source)
    jobs = [document for document in documents if _reader_of(document) is not None]
    if not jobs:
        raise _unknown_kind(documents, text, source)
    if len(jobs) > 1:
        raise jobs[1].error((), f"a second job starts here: {_kind(jobs[1])}", hint="keep one job in the file")
    (job,) = jobs
    reader = _reader_of(job)
    assert reader is not None
    read = Object(job, draft)
    for key in [key for key in ("apiVersion", "kind") if read.has(key)]:
        read.note("taken", f"read as {_kind(job)}", key)
    others = [document for document in documents if document is not job]
    reader(read, others)
    read.settle(REASONS)
    for other in others:
        if other.values.get("kind") not in kubernetes.RUNTIME_KINDS:
            draft.note("ignored", _kind(other), other.line_of(()), "create it on the cluster; nothing here reads it")
    return draft.finished(_kind(job))


def _reader_of(document: YamlText) -> Reader | None:
    values = document.values
    if "apiVersion" in values or "kind" in values:
        return _BY_KIND.get((str(values.get("apiVersion")), str(values.get("kind"))))
    if isinstance(values.get("services"), Mapping):
        return tasks.read_swarm
    return tasks.read_skypilot if any(key in values for key in (*_OF_SKYPILOT, "resources")) else None


def _kind(document: YamlText) -> str:
    reader = _reader_of(document)
    names: dict[Any, str] = {tasks.read_swarm: "stack", tasks.read_skypilot: "SkyPilot task"}
    return names.get(reader) or str(document.values.get("kind", "document"))


def _unknown_kind(documents: Sequence[YamlText], text: str, source: str) -> SpecError:
    known = ", ".join(sorted(kind for _, kind in _BY_KIND))
    reads = f"composesim reads {known}, sbatch scripts, stacks, SkyPilot tasks and composesim.yaml"
    hint = "composesim up --nodes N SCRIPT"
    document = next((each for each in documents if "kind" in each.values), None)
    if document is None:
        return error_at(source, text, 1, f"this is no job that composesim knows: {reads}", hint=hint)
    version, kind = str(document.values.get("apiVersion", "")), str(document.values["kind"])
    versions = [each for each, name in _BY_KIND if name == kind]
    if versions:
        problem = f"apiVersion '{version}' of {kind} is unknown: composesim reads {' or '.join(versions)}"
        return document.error(("apiVersion",), problem, hint=f"apiVersion: {versions[0]}")
    return document.error(("kind",), f"kind '{kind}' is no job that composesim knows: {reads}", hint=hint)
