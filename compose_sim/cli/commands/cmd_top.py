"""`composesim top`: what each rank does, as lanes in the terminal."""

from __future__ import annotations

import shutil

import click

from compose_sim.cli.console import echo, is_terminal, print_table
from compose_sim.cli.run_lookup import named_folder, run_parameters
from compose_sim.engine.run_folder.finished import end_of

_SECONDS, _BETWEEN_LOOKS_S = 30.0, 1.0
_BESIDE_CELLS = 46  # columns of the terminal for the rest of a row
_MOST_ROWS = 40


@click.command("top")
@run_parameters
def command(run: str | None) -> None:
    """Show the last 30 seconds of each rank of RUN as a lane, again every second until the run ends."""
    from compose_sim.core.view.lanes import AWAITED, COMPUTES, MOVES, WAITS, Lanes
    from compose_sim.view.reader import PageReader

    folder = named_folder(run)
    reader, over = PageReader(folder), end_of(folder)
    columns, rows = shutil.get_terminal_size()
    lanes = Lanes(seconds=_SECONDS, cells=max(10, columns - _BESIDE_CELLS))
    legend = f"{COMPUTES} computes  {MOVES} moves data  {WAITS} waits  {AWAITED} others wait for it"
    try:
        while not reader.is_over:
            drawn = lanes.take(reader.read())
            # Ranks for which others wait come first, if there is no room for all.
            most = min(_MOST_ROWS, max(4, rows - 5))
            shown = (
                sorted(drawn, key=lambda lane: "wait for it" not in lane.words)[:most] if len(drawn) > most else drawn
            )
            if is_terminal() or reader.is_over:
                click.clear()  # does nothing if stdout is not a terminal
                table = [
                    [f"rank {each.rank}", each.node, str(each.step or ""), each.cells, each.words] for each in shown
                ]
                print_table(["rank", "node", "step", f"last {_SECONDS:g} s", ""], table)
                echo(legend + (f"; and {len(drawn) - len(shown)} more ranks" if len(drawn) > len(shown) else ""))
            if not reader.is_over:
                over.wait(_BETWEEN_LOOKS_S)
    finally:
        reader.close()
