"""What does `composesim scale` do? It has more or fewer nodes take part in an elastic run."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import intervene, run_under_way, tell
from compose_sim.cli.run_lookup import json_option, run_option
from compose_sim.core.faults.commands import Scale


@click.command("scale")
@click.argument("nodes", type=click.IntRange(min=1))
@run_option
@json_option
def command(nodes: int, run: str | None, as_json: bool) -> None:
    """Have NODES nodes take part from now on, within the range of the run's --elastic. The last ones leave in good order."""
    folder = run_under_way(run)
    request, events = intervene(folder, "scale", Scale(nodes=nodes))
    done = next(event for event in events if event.kind == "scale" and event.data["id"] == request)
    names = [str(name) for name in done.data["names"]]
    tell({"id": request, "nodes": names}, f"{len(names)} nodes take part: {', '.join(names)}", as_json=as_json)
