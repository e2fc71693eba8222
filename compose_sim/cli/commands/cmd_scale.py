"""Define `composesim scale`: change the number of nodes of an elastic run."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import event_of, intervene, print_result, running_folder
from compose_sim.cli.run_lookup import json_option, run_option
from compose_sim.core.faults.commands import Scale


@click.command("scale")
@click.argument("nodes", type=click.IntRange(min=1))
@run_option
@json_option
def command(nodes: int, run: str | None, as_json: bool) -> None:
    """Change the number of nodes of an elastic run, within the range of --elastic. The last nodes shut down gracefully."""
    folder = running_folder(run)
    request, events = intervene(folder, "scale", Scale(nodes=nodes))
    names = [str(name) for name in event_of("scale", request, events).data["names"]]
    print_result({"id": request, "nodes": names}, f"scaled to {len(names)} nodes: {', '.join(names)}", as_json=as_json)
