"""Build jobs for the tests of exports."""

from __future__ import annotations

from typing import Any

from compose_sim.core.plan.model import Program
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.plugins.job_files.core.exports.job import Change, Job, changes_of, job_of
from compose_sim.plugins.job_files.core.exports.targets import TARGETS

# Everything that a document can hold. The values need quoting in at least one format.
FULL: dict[str, Any] = {
    "nodes": 4,
    "nproc_per_node": 2,
    "name": "full_job",
    "image": "example/train:1",
    "memory": "2g",
    "cpus": 1.5,
    "timeout": "2h",
    "max_restarts": 2,
    "env": {"GREETING": "it's $(HOME) $5", "HF_TOKEN": "secret-value"},
}
ARGUMENTS = ("--note", "it's $(HOME) $5", "-x")


def spec_of(**values: Any) -> ClusterSpec:
    """Return a spec with these values."""
    return ClusterSpec(**values)


def job(spec: ClusterSpec, *, accelerator: str = "", arguments: tuple[str, ...] = ARGUMENTS) -> Job:
    """Return the job that runs train.py."""
    program = Program(target="train.py", arguments=arguments, folder="/project")
    name, image = spec.name or "train", spec.image
    return job_of(spec, program, name=name, image=image, accelerator=accelerator, variables={})


def document(target: str, **values: Any) -> str:
    """Return what a target makes of a full spec with these values changed."""
    target_of = TARGETS[target]
    return target_of.write(job(spec_of(**{"recipe": target_of.recipe, **FULL, **values}), accelerator="H100"))


def changes(target: str, *, source: str = "", **values: Any) -> list[Change]:
    """Return what a target changes in a spec with these values."""
    spec, kept = spec_of(**values), TARGETS[target]
    return changes_of(spec, job(spec), keeps=kept.keeps, needs_image=kept.needs_image, source=source)
