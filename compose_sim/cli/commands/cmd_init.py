"""Write the files of a new project, which run unchanged."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim import assets
from compose_sim.cli.console import say
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def command(directory: Path, force: bool) -> None:
    """Write a commented composesim.yaml, its schema for editors, and a small DDP script into DIR."""
    templates = assets.root() / "templates"
    sources = (
        templates / "init" / "composesim.yaml",
        templates / "init" / "train.py",
        templates / "composesim.schema.json",
    )
    existing = [source.name for source in sources if (directory / source.name).exists()]
    if existing and not force:
        raise SpecError(f"'{directory / existing[0]}' already exists", hint=f"composesim init --force {directory}")
    for source in sources:
        write_file(directory / source.name, source.read_text(encoding="utf-8"))
        say(f"wrote {directory / source.name}")
    say("Run it: composesim up" if directory == Path() else f"Run it: cd {directory} && composesim up")
