"""Remove what is left of crashed runs."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.run_lookup import everywhere_option, json_option
from compose_sim.engine.lifetime.orphans import find_runs, forget_absent_runs
from compose_sim.engine.run_folder.finished import delete_finished


@click.command("prune")
@click.option("--finished", is_flag=True, help="Also delete the folders of this project's finished runs.")
@everywhere_option
@json_option
def command(finished: bool, everywhere: bool, as_json: bool) -> None:
    """Remove the nodes and networks of this project's crashed runs.

    Runs that are running, kept with --keep, or rendered are not touched.
    """
    project = Path.cwd()
    found = [left for left in find_runs(project) if everywhere or left.is_in(project)]
    removed = []
    for left in found:
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
            say(f"removed {left.run} from {left.engine.name}")
    forget_absent_runs()
    live = {left.run for left in found if left.state != "crashed"}
    deleted = delete_finished(project, live=live) if finished else ()
    if as_json:
        print_json({"schema_version": 1, "removed": removed, "deleted": deleted})
        return
    for name in deleted:
        say(f"deleted the folder of {name}")
    if not (removed or deleted):
        say("nothing to remove")
