"""Write a folder that runs with plain `docker compose up`, or as the job of a cluster, without composesim."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from compose_sim.app.render import render, render_job
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.cli.cluster_command import OwnWordFirst
from compose_sim.cli.console import print_json, say
from compose_sim.cli.options import portable_options, request_from_flags
from compose_sim.cli.views.report import link_lines
from compose_sim.core.request.job_files import WRITERS
from compose_sim.engine.project_owner import check_project
from compose_sim.plugins.registry import ENGINES, built_in

_HELP = [
    "Write DIR: the compose file, the settings, the code of the nodes and a copy of your project.",
    *(writer.summary for engine, writer in built_in(WRITERS).items() if engine in built_in(ENGINES)),
]


@click.command("render", cls=OwnWordFirst, help="\n\n".join(_HELP))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@portable_options
@click.option("--force", is_flag=True, help="Write into a folder that is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(
    folder: Path, file: Path | None, program: tuple[str, ...], force: bool, as_json: bool, **flags: Any
) -> None:
    """Write the folder."""
    check_project(folder)
    request = request_from_flags(file=file, program=program, **flags)
    if request.spec.engine in built_in(ENGINES):
        _write_job(request, folder, force=force, as_json=as_json)
        return
    session = Session(request, folder=folder.absolute(), portable=True)
    plan, size = session.plan, render(session, force=force)
    if as_json:
        print_json(
            {"schema_version": 1, "run": session.name, "folder": str(folder), "nodes": len(plan.nodes), "bytes": size}
        )
        return
    say(f"{folder}/docker-compose.yml: {len(plan.nodes)} nodes, {plan.world_size} ranks of {plan.program}")
    if plan.image == "host":
        say("It runs this machine's own Python, so it is bound to this machine; --image TAG makes one that travels.")
    if any(node.gpus and node.gpus.uuids for node in plan.nodes):
        say("It names this machine's GPUs by UUID; --gpus emulated or --gpus none makes one without them.")
    if plan.user_ids[0] == 0 and not plan.is_rootless:
        say(
            "Its nodes run as root, because files of root can be mapped only by composesim up; --user NAME names another user."
        )
    for line in link_lines(plan, token=session.folder.read_token()):
        say(line)
    say(f"Try: cd {folder} && docker compose up")


def _write_job(request: Request, folder: Path, *, force: bool, as_json: bool) -> None:
    job, size = render_job(request, folder.absolute(), force=force)
    if as_json:
        changes = [asdict(change) for change in job.changes]
        print_json({"schema_version": 1, "folder": str(folder), "job": job.file, "bytes": size, "changes": changes})
        return
    say(f"{folder}/{job.file}: a job for {len(request.spec.node_specs)} nodes. What changes there:")
    for change in job.changes:
        say(f"  {change.what}: {change.text}")
    say(f"Try: cd {folder}/code && {job.submit.replace('FILE', f'../{job.file}')}")
