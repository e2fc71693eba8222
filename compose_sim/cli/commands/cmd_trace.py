"""Write the timeline of a run as a trace that Perfetto opens."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import FILE, named_folder, run_option
from compose_sim.cli.views.trace import write_trace

_OUTPUT = "The file to write (default: RUN.trace.json). FILE.zip has one file per node, for Perfetto 58 or newer."


@click.command("trace")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("-o", "--output", type=FILE, help=_OUTPUT)
def command(name: str | None, run: str | None, output: Path | None) -> None:
    """Write the steps, collectives, messages, faults and usage of RUN as one trace, for ui.perfetto.dev or chrome://tracing."""
    folder = named_folder(name or run)
    say(write_trace(output or Path(f"{folder.name}.trace.json"), folder))
