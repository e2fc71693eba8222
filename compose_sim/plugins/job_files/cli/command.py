"""Write the job for a real cluster: Slurm, Kubernetes, Docker Swarm, SkyPilot or plain torchrun."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from compose_sim.cli.cluster_command import OwnWordFirst
from compose_sim.cli.console import echo, print_json, say
from compose_sim.cli.options import portable_options, request_from_flags
from compose_sim.cli.spelling import OneOf
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.plugins.job_files.app.job_file import export
from compose_sim.plugins.job_files.core.exports.targets import MEANT, TARGETS


@click.command("export", cls=OwnWordFirst)
@click.argument("target", metavar="TARGET", type=OneOf(TARGETS, MEANT))
@portable_options
@click.option("--accelerator", default="", metavar="NAME", help="Name of the GPU on the cluster, such as H100.")
@click.option(
    "-o", "--output", metavar="PATH", type=click.Path(path_type=Path), help="Write the document to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the document and what changes as JSON.")
def command(
    target: str,
    file: Path | None,
    program: tuple[str, ...],
    accelerator: str,
    output: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print the job that runs SCRIPT on a cluster, and what changes there.

    TARGET is torchrun, slurm, jobset, trainjob, pytorchjob, volcano, mpijob (Horovod), rayjob, raycluster, swarm or skypilot.
    """
    exported = export(request_from_flags(file=file, program=program, **flags), target, accelerator=accelerator)
    if output:
        write_file(output, exported.text)
    if as_json:
        changes = [asdict(change) for change in exported.changes]
        print_json({"schema_version": 1, "target": target, "document": exported.text, "changes": changes})
        return
    if not output:
        echo(exported.text.rstrip("\n"))
    say("What changes there:")
    for change in exported.changes:
        say(f"  {change.what}: {change.text}")
    say(f"Try: {exported.submit.replace('FILE', str(output or 'FILE'))}")
