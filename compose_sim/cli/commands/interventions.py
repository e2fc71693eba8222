"""Change a running run: heal faults, set links, change the number of nodes.

The process of the run executes an intervention; the command waits until it has, and prints the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from compose_sim.cli.console import echo, print_json, print_table
from compose_sim.cli.run_lookup import json_option, run_option, select_folder
from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Heal, Intervention, Scale, SetLinks
from compose_sim.core.plan.model import node_name
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError


def running_folder(run: str | None) -> RunFolder:
    """Return the folder of a run that is running; SpecError if it is over."""
    folder = select_folder(run)
    if not folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is over", hint="composesim up --detach …")
    return folder


def intervene(folder: RunFolder, verb: str, intervention: Intervention) -> tuple[str, list[Event]]:
    """Have an intervention executed; return its id, and the events that composesim has written since."""
    request = new_id(verb)
    return request, send_request(folder, intervention, request)


def event_of(kind: str, request: str, events: list[Event]) -> Event:
    """Return the first event of this kind that a request caused."""
    return next(event for event in events if event.kind == kind and event.data["id"] == request)


def print_result(value: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """Print the value as JSON, or else the line."""
    if as_json:
        print_json({"schema_version": 1, **value})
    else:
        echo(line)


@click.command("heal")
@click.argument("target", required=False, default="", metavar="[FAULT|NODE]")
@run_option
@json_option
def heal_command(target: str, run: str | None, as_json: bool) -> None:
    """Heal a fault (fault-1a2b3c), all faults of a node (node-1, or 1), or all faults. Killed nodes are started again."""
    folder = running_folder(run)
    if target.isdecimal():
        target = node_name(target, [node.name for node in folder.read_plan().nodes], run=folder.name)
    _, events = intervene(folder, "heal", Heal(target=target))
    healed = [str(event.data["id"]) for event in events if event.kind == "heal" and event.data["phase"] == "done"]
    print_result({"healed": healed}, f"healed {', '.join(healed)}", as_json=as_json)


_LINK_HELP = """Set the shape of links, or show the shapes in force.

A shape is any of 1gbit,20ms,jitter=2ms,loss=0.1%, or a profile such as ethernet-1g.

\b
composesim link 100mbit                         all links
composesim link node-1=10mbit                   all links of node-1
composesim link node-0,node-1:node-2=1gbit      links between two groups
composesim link node-1=plain                    no shaping for node-1
composesim link                                 show the shapes in force

A new shape replaces the previous one for the same links. If several apply to a link, the one for the fewest links wins.
"""


@click.command("link", help=_LINK_HELP)
@click.argument("shapes", nargs=-1, metavar="[[SCOPE=]SHAPE]...")
@click.option("--clear", is_flag=True, help="Remove all shaping.")
@run_option
@json_option
def link_command(shapes: tuple[str, ...], clear: bool, run: str | None, as_json: bool) -> None:
    """Set links, or show them."""
    from compose_sim.core.network.links import check_links

    if clear and shapes:
        raise click.UsageError("--clear cannot be combined with shapes")
    if not (clear or shapes):
        _show_links(run, as_json=as_json)
        return
    folder = running_folder(run)
    try:
        check_links(shapes, [node.name for node in folder.read_plan().nodes])
    except ValueError as error:
        raise SpecError(str(error), hint="composesim link --help") from None
    request, events = intervene(folder, "link", SetLinks(links=shapes))
    links = [str(text) for text in event_of("link", request, events).data["links"]]
    print_result({"id": request, "links": links}, f"links: {', '.join(links) or 'all plain'}", as_json=as_json)


def _show_links(run: str | None, *, as_json: bool) -> None:
    from compose_sim.core.network.links import HEADER, link_row
    from compose_sim.engine.run_folder.record import read_state

    folder = select_folder(run)
    _, state = read_state(folder, metrics=False)
    if as_json:
        print_json({"schema_version": 1, "run": folder.name, "links": list(state.links)})
    elif state.links:
        print_table(HEADER, [link_row(text) for text in state.links])
    else:
        echo("all links are plain")


@click.command("scale")
@click.argument("nodes", type=click.IntRange(min=1))
@run_option
@json_option
def scale_command(nodes: int, run: str | None, as_json: bool) -> None:
    """Change the number of nodes of an elastic run, within the range of --elastic. The last nodes shut down gracefully."""
    folder = running_folder(run)
    request, events = intervene(folder, "scale", Scale(nodes=nodes))
    names = [str(name) for name in event_of("scale", request, events).data["names"]]
    print_result({"id": request, "nodes": names}, f"scaled to {len(names)} nodes: {', '.join(names)}", as_json=as_json)
