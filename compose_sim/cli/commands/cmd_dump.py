"""Show the stack of each rank of a run, and dump torch's flight recorder for torch's own tool."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.commands.interventions import running_folder
from compose_sim.cli.console import echo, print_json, say
from compose_sim.cli.run_lookup import FOLDER, json_option, named_folder, run_option, seconds
from compose_sim.core.events.events import Event


@click.command("dump")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("--timeout", "timeout_s", callback=seconds, default="20s", show_default=True, help="How long to wait.")
@click.option(
    "-o", "--output", type=FOLDER, metavar="FOLDER", help="Where the dumps of all ranks go (default: RUN.flight)."
)
@json_option
def command(name: str | None, run: str | None, timeout_s: float, output: Path | None, as_json: bool) -> None:
    """Show the stack of each rank of RUN and its pending collectives, and dump torch's flight recorder.

    The run goes on. The dumps are in torch's format.
    """
    from compose_sim.view.dumps import dump_ranks, gather_dumps

    folder = named_folder(name or run) if name and "/" in name else running_folder(name or run)
    found = dict(sorted(dump_ranks(folder, timeout_s=timeout_s).items()))
    target = output or Path(f"{folder.name}.flight")
    left_out = gather_dumps(folder, target)
    if as_json:
        ranks = [{"rank": rank, "node": event.node, **event.data} for rank, event in found.items()]
        print_json({"schema_version": 1, "folder": str(target), "left_out": left_out, "ranks": ranks})
        return
    for rank, event in found.items():
        _show(rank, event)
    for file, why in left_out.items():
        say(f"{file} is left out: {why}")
    say(f"compare the collectives of the ranks: python -m torch.distributed.flight_recorder.fr_trace {target}")


def _show(rank: int, event: Event) -> None:
    data = event.data
    doing = "holds the interpreter's lock in C code" if data.get("locked_in_c") else data.get("doing") or "running"
    echo(f"rank {rank} on {event.node}: {doing}, {data.get('steps', 0)} steps")
    for file, line, function in data.get("frames") or ():
        echo(f"  {file}:{line} in {function}")
    for each in data.get("pending") or ():
        echo(f"  pending: {each.get('op')} #{each.get('number')} of {each.get('sizes')}, group {each.get('group')}")
