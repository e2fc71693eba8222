"""Write the skill for coding agents."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.commands.cmd_init import write_new
from compose_sim.engine.project_owner import check_project

_SKILL = Path(__file__).parents[1] / "templates" / "SKILL.md"


@click.command("skill")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing file, and keep it as SKILL.md.bak.")
def command(directory: Path, force: bool) -> None:
    """Write DIR/SKILL.md, in the format that coding agents read. An existing file is kept."""
    check_project(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_new(directory / _SKILL.name, _SKILL.read_text(encoding="utf-8"), force=force)
