"""Write the files of a new project, which run unchanged."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim import assets
from compose_sim.cli.console import say
from compose_sim.core.plan.debug_configuration import launch_file
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--vscode", is_flag=True, help="Also write .vscode/launch.json, for `composesim attach --dap`.")
def command(directory: Path, force: bool, vscode: bool) -> None:
    """Write a commented composesim.yaml, its schema for editors, and a small DDP script into DIR."""
    check_project(directory)
    templates = assets.root() / "templates"
    sources = (
        templates / "init" / "composesim.yaml",
        templates / "init" / "train.py",
        templates / "composesim.schema.json",
    )
    texts = {source.name: source.read_text(encoding="utf-8") for source in sources}
    if vscode:
        texts[".vscode/launch.json"] = launch_file()
        (directory / ".vscode").mkdir(parents=True, exist_ok=True)
    existing = [name for name in texts if (directory / name).exists()]
    if existing and not force:
        raise SpecError(f"'{directory / existing[0]}' already exists", hint=f"composesim init --force {directory}")
    for name, text in texts.items():
        write_file(directory / name, text)
        say(f"wrote {directory / name}")
    say("Run it: composesim up" if directory == Path() else f"Run it: cd {directory} && composesim up")
