"""What does `composesim link` do? It gives links of a running cluster another shape, or shows the shapes that they have."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import intervene, run_under_way, tell
from compose_sim.cli.console import print_json, print_table
from compose_sim.cli.run_lookup import json_option, run_option, select_folder
from compose_sim.core.faults.commands import Relink
from compose_sim.core.network.links import HEADER, check_links, link_row
from compose_sim.engine.run_folder.record import read_state
from compose_sim.errors import SpecError

_HELP = """Give links the shape 1gbit,20ms,jitter=2ms,loss=0.1% (any of these), or that of a profile such as ethernet-1g.

\b
composesim link 100mbit                         every link
composesim link node-1=10mbit                   all links of node-1
composesim link node-0,node-1:node-2=1gbit      those between two groups
composesim link node-1=plain                    as if nothing had been said of them
composesim link                                 show the shapes in force

Each replaces what was said of the same links before; of several that hold, the one for the fewest links counts.
"""


@click.command("link", help=_HELP)
@click.argument("shapes", nargs=-1, metavar="[[SCOPE=]SHAPE]...")
@click.option("--clear", is_flag=True, help="Make every link plain again.")
@run_option
@json_option
def command(shapes: tuple[str, ...], clear: bool, run: str | None, as_json: bool) -> None:
    """Change links, or show them."""
    if clear and shapes:
        raise click.UsageError("--clear makes every link plain: leave it or the shapes out")
    if not (clear or shapes):
        _show(run, as_json=as_json)
        return
    folder = run_under_way(run)
    try:
        check_links(shapes, [node.name for node in folder.read_plan().nodes])
    except ValueError as error:
        raise SpecError(str(error), hint="composesim link --help") from None
    request, events = intervene(folder, "link", Relink(links=shapes))
    done = next(event for event in events if event.kind == "link" and event.data["id"] == request)
    links = [str(text) for text in done.data["links"]]
    tell({"id": request, "links": links}, f"links: {', '.join(links) or 'all plain'}", as_json=as_json)


def _show(run: str | None, *, as_json: bool) -> None:
    folder = select_folder(run)
    _, state = read_state(folder, metrics=False)
    if as_json:
        print_json({"schema_version": 1, "run": folder.name, "links": list(state.links)})
    elif state.links:
        print_table(HEADER, [link_row(text) for text in state.links])
    else:
        click.echo("all links are plain")
