"""Remove what crashed runs have left."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.run_lookup import json_option
from compose_sim.engine.lifetime.orphans import find_runs


@click.command("prune")
@json_option
def command(as_json: bool) -> None:
    """Remove the nodes and networks of crashed runs. Runs that are running, kept with --keep, or rendered are not touched."""
    removed = []
    for left in find_runs(Path.cwd()):
        if left.state == "unreadable":
            say(f"skipped {left.run}: its plan cannot be read. Remove it: composesim down --run {left.run}")
        if left.state == "kept":
            say(f"skipped {left.run}: it was started with --keep. Remove it: composesim down --run {left.run}")
            continue
        if left.state != "crashed":
            continue
        left.engine.remove(left.run)
        removed.append({"run": left.run, "engine": left.engine.name})
        if not as_json:
            say(f"removed {left.run}: its nodes and network on {left.engine.name}")
    if as_json:
        print_json({"schema_version": 1, "removed": removed})
    elif not removed:
        say("nothing to remove")
