"""Define `composesim link`: change the shapes of links in a running cluster, or show them."""

from __future__ import annotations

import click

from compose_sim.cli.commands.interventions import event_of, intervene, print_result, running_folder
from compose_sim.cli.console import echo, print_json, print_table
from compose_sim.cli.run_lookup import json_option, run_option, select_folder
from compose_sim.core.faults.commands import SetLinks
from compose_sim.core.network.links import HEADER, check_links, link_row
from compose_sim.engine.run_folder.record import read_state
from compose_sim.errors import SpecError

_HELP = """Set the shape of links, or show the shapes in force.

A shape is any of 1gbit,20ms,jitter=2ms,loss=0.1%, or a profile such as ethernet-1g.

\b
composesim link 100mbit                         all links
composesim link node-1=10mbit                   all links of node-1
composesim link node-0,node-1:node-2=1gbit      links between two groups
composesim link node-1=plain                    no shaping for node-1
composesim link                                 show the shapes in force

A new shape replaces the previous one for the same links. If several apply to a link, the one for the fewest links wins.
"""


@click.command("link", help=_HELP)
@click.argument("shapes", nargs=-1, metavar="[[SCOPE=]SHAPE]...")
@click.option("--clear", is_flag=True, help="Remove all shaping.")
@run_option
@json_option
def command(shapes: tuple[str, ...], clear: bool, run: str | None, as_json: bool) -> None:
    """Set links, or show them."""
    if clear and shapes:
        raise click.UsageError("--clear cannot be combined with shapes")
    if not (clear or shapes):
        _show(run, as_json=as_json)
        return
    folder = running_folder(run)
    try:
        check_links(shapes, [node.name for node in folder.read_plan().nodes])
    except ValueError as error:
        raise SpecError(str(error), hint="composesim link --help") from None
    request, events = intervene(folder, "link", SetLinks(links=shapes))
    links = [str(text) for text in event_of("link", request, events).data["links"]]
    print_result({"id": request, "links": links}, f"links: {', '.join(links) or 'all plain'}", as_json=as_json)


def _show(run: str | None, *, as_json: bool) -> None:
    folder = select_folder(run)
    _, state = read_state(folder, metrics=False)
    if as_json:
        print_json({"schema_version": 1, "run": folder.name, "links": list(state.links)})
    elif state.links:
        print_table(HEADER, [link_row(text) for text in state.links])
    else:
        echo("all links are plain")
