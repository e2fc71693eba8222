"""Export a request: the document for another cluster, and what changes there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from compose_sim.app.program import find_program, name_after
from compose_sim.app.request import Request
from compose_sim.core.plan.model import Program, copied_name
from compose_sim.core.plan.size import with_default_size
from compose_sim.core.plan.slurm import check_exported_options
from compose_sim.core.request.job_files import Change, Exported
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.engine.project_files import read_project_file
from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import changes_of, job_of
from compose_sim.plugins.job_files.core.exports.targets import TARGETS, Target, own_changes


def export(request: Request, target_name: str, *, accelerator: str) -> Exported:
    """Return the document; raise SpecError if the spec cannot be met on this kind of cluster."""
    spec, target = with_default_size(request.spec), TARGETS[target_name]
    _check_recipe(spec, target_name, target)
    if target_name == "slurm":
        check_exported_options(spec.sbatch or "")
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
