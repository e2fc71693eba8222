"""What does `composesim render` do? It leaves a folder that runs with plain `docker compose up`, without composesim."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from compose_sim.app.program import find_program, new_name
from compose_sim.app.render import render_folder
from compose_sim.cli.cluster_command import OwnWordFirst
from compose_sim.cli.console import print_json, say
from compose_sim.cli.options import cluster_options, read_request
from compose_sim.cli.views.service_links import link_lines
from compose_sim.engine.docker.images import ensure_host_image
from compose_sim.engine.host.facts import docker_facts
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.engine.run_folder.folder import RunFolder


@click.command("render", cls=OwnWordFirst)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@cluster_options
@click.option("--force", is_flag=True, help="Write into a folder that is not empty.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(
    folder: Path, file: Path | None, program: tuple[str, ...], force: bool, as_json: bool, **flags: Any
) -> None:
    """Write DIR: the compose file, its settings, the code of the nodes and a copy of yours."""
    request = read_request(file=file, program=program, **flags)
    run = new_name(request.spec)
    plan, host = request.plan(run=run, run_folder=folder.absolute(), portable=True)
    target = find_program(request.spec, find_recipe(request.spec.recipe), request.folder)
    script = None if target.is_module or target.is_command else Path(os.path.abspath(request.folder / target.target))
    size = render_folder(
        plan, folder.absolute(), code=request.folder, script=script, host=host, dotenv=request.dotenv, force=force
    )
    if plan.image == "host" and docker_facts().available:
        ensure_host_image()
    if as_json:
        print_json({"schema_version": 1, "run": run, "folder": str(folder), "nodes": len(plan.nodes), "bytes": size})
        return
    say(f"{folder}/docker-compose.yml: {len(plan.nodes)} nodes, {plan.world_size} ranks of {plan.program}")
    if plan.image == "host":
        say("It runs this machine's own Python, so it is bound to this machine; --image TAG makes one that travels.")
    if any(node.gpus and node.gpus.uuids for node in plan.nodes):
        say("It names this machine's GPUs by UUID; --gpus emulated or --gpus none makes one without them.")
    for line in link_lines(plan, token=RunFolder(folder.absolute()).read_token()):
        say(line)
    say(f"Try: cd {folder} && docker compose up")
