"""Write the timeline of a run as a trace that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

import click

from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import named_folder, run_option
from compose_sim.core.view.trace import chrome_trace
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.view.reader import PageReader


@click.command("trace")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file to write (default: RUN.trace.json).",
)
def command(name: str | None, run: str | None, output: Path | None) -> None:
    """Write the steps, collectives, faults and usage of RUN as one trace, for ui.perfetto.dev or chrome://tracing."""
    folder = named_folder(name or run)
    message = PageReader(folder).read()
    path = output or Path(f"{folder.name}.trace.json")
    write_file(path, json.dumps(chrome_trace(message), separators=(",", ":")))
    say(f"{len(message['spans'])} spans: open {path} at https://ui.perfetto.dev, which keeps it on this machine")
