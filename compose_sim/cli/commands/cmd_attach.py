"""Attach the terminal to the debugger of a rank that has stopped at `breakpoint()`."""

from __future__ import annotations

import sys

import click

from compose_sim.cli.console import echo, say
from compose_sim.cli.run_lookup import run_option, select_folder
from compose_sim.core.plan.selectors import chosen_ranks
from compose_sim.engine.lifetime.attach import BreakpointWatch, relay
from compose_sim.engine.run_folder.record import end_of
from compose_sim.errors import ComposesimError, SpecError


@click.command("attach")
@click.option("--rank", required=True, metavar="R", help="The rank to debug.")
@run_option
def command(rank: str, run: str | None) -> None:
    """Attach to the debugger of a rank that waits at breakpoint(), or wait until the rank gets there.

    Ctrl-D and Ctrl-C leave the debugger, and the rank continues.
    """
    folder = select_folder(run, elsewhere=False)
    plan = folder.read_plan()
    ((node, number),) = chosen_ranks(plan, nodes=(), ranks=(rank,))
    over = end_of(folder)
    watch = BreakpointWatch(folder.path, number)
    stop = watch.update()
    if stop and stop.phase == "attached":
        raise SpecError(
            f"somebody is already attached to rank {rank}, at {stop.file}:{stop.line}", hint="composesim logs -f"
        )
    if not (stop or over.is_set()):
        say(f"waiting for rank {rank} to reach a breakpoint (Ctrl-C to leave)")
    link = watch.connect(over)
    if link is None or watch.stop is None:
        raise ComposesimError(
            f"the run '{folder.name}' ended before rank {rank} reached a breakpoint",
            hint=f"put breakpoint() on the path of rank {rank}, and run: composesim up {plan.program}",
        )
    say(f"rank {rank} on {node} is at {watch.stop.file}:{watch.stop.line}")
    with link:
        relay(link, sys.stdin.fileno(), lambda text: echo(text, nl=False), watch)
    say(f"rank {rank} continues" if not over.is_set() else f"the run '{folder.name}' is over")
