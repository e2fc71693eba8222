"""What does `composesim attach` do? It puts a person before the debugger of a rank that stands at `breakpoint()`."""

from __future__ import annotations

import sys

import click

from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import run_option, select_folder
from compose_sim.core.plan.selectors import chosen_ranks
from compose_sim.engine.lifetime.attach import BreakpointWatch, relay
from compose_sim.engine.run_folder.record import end_of
from compose_sim.errors import ComposesimError, SpecError


@click.command("attach")
@click.option("--rank", required=True, metavar="R", help="The rank to debug.")
@run_option
def command(rank: str, run: str | None) -> None:
    """Join the debugger prompt of a rank that waits at breakpoint(); wait for it to get there where it has not.

    Ctrl-D lets the rank run on; so does leaving by Ctrl-C.
    """
    folder = select_folder(run, elsewhere=False)
    plan = folder.read_plan()
    ((node, number),) = chosen_ranks(plan, nodes=(), ranks=(rank,))
    over = end_of(folder)
    watch = BreakpointWatch(folder.path, number)
    stop = watch.update()
    if stop and stop.phase == "attached":
        raise SpecError(f"rank {rank} is being debugged already, at {stop.file}:{stop.line}", hint="composesim logs -f")
    if not (stop or over.is_set()):
        say(f"rank {rank} has not come to a breakpoint yet; waiting for it (Ctrl-C to leave)")
    link = watch.connect(over)
    if link is None or watch.stop is None:
        raise ComposesimError(
            f"the run '{folder.name}' ended before rank {rank} came to a breakpoint",
            hint=f"put breakpoint() where rank {rank} comes by, and: composesim up {plan.program}",
        )
    say(f"rank {rank} on {node} stands at {watch.stop.file}:{watch.stop.line}")
    with link:
        relay(link, sys.stdin.fileno(), lambda text: click.echo(text, nl=False), watch)
    say(f"rank {rank} runs on" if not over.is_set() else f"the run '{folder.name}' is over")
