"""Define `composesim heal`: undo one fault, all faults of a node, or all faults."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import intervene, print_result, running_folder
from compose_sim.cli.run_lookup import json_option, run_option
from compose_sim.core.faults.commands import Heal
from compose_sim.core.plan.selectors import node_name


@click.command("heal")
@click.argument("target", required=False, default="", metavar="[FAULT|NODE]")
@run_option
@json_option
def command(target: str, run: str | None, as_json: bool) -> None:
    """Heal a fault (fault-1a2b3c), all faults of a node (node-1, or 1), or all faults. Killed nodes are started again."""
    folder = running_folder(run)
    if target.isdecimal():
        target = node_name(target, [node.name for node in folder.read_plan().nodes], run=folder.name)
    _, events = intervene(folder, "heal", Heal(target=target))
    healed = [str(event.data["id"]) for event in events if event.kind == "heal" and event.data["phase"] == "done"]
    print_result({"healed": healed}, f"healed {', '.join(healed)}", as_json=as_json)
