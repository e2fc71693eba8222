"""What does `composesim heal` do? It undoes one fault, all faults of a node, or all there are."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import intervene, run_under_way, tell
from compose_sim.cli.run_lookup import json_option, run_option
from compose_sim.core.faults.commands import Heal
from compose_sim.core.plan.selectors import node_name


@click.command("heal")
@click.argument("target", required=False, default="", metavar="[FAULT|NODE]")
@run_option
@json_option
def command(target: str, run: str | None, as_json: bool) -> None:
    """Undo a fault (fault-1a2b3c), all faults of a node (node-1, or 1), or all of them: a killed node is started again."""
    folder = run_under_way(run)
    if target.isdigit():
        target = node_name(target, [node.name for node in folder.read_plan().nodes], run=folder.name)
    _, events = intervene(folder, "heal", Heal(target=target))
    healed = [str(event.data["id"]) for event in events if event.kind == "heal" and event.data["phase"] == "done"]
    tell({"healed": healed}, f"healed {', '.join(healed)}", as_json=as_json)
