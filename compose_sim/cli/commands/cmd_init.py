"""Write the files of a new project, which run unchanged."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import click

from compose_sim import assets
from compose_sim.cli.console import say
from compose_sim.core.plan.debug_configuration import launch_file
from compose_sim.engine.project_owner import check_project
from compose_sim.engine.run_folder.safe_files import write_file


@click.command("init")
@click.argument("directory", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace existing files, and keep each as NAME.bak.")
@click.option(
    "--vscode", is_flag=True, help="Write .vscode/launch.json, for `composesim attach --dap`, and nothing else."
)
def command(directory: Path, force: bool, vscode: bool) -> None:
    """Write a commented composesim.yaml, its schema for editors, and a small DDP script into DIR. Existing files are kept."""
    check_project(directory)
    templates = assets.root() / "templates"
    sources = (
        templates / "init" / "composesim.yaml",
        templates / "init" / "train.py",
        templates / "composesim.schema.json",
    )
    texts = {source.name: source.read_text(encoding="utf-8") for source in sources}
    if vscode:
        texts = {".vscode/launch.json": launch_file()}
        (directory / ".vscode").mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_new(directory / name, text, force=force)
    if not vscode:
        say("Run it: composesim up" if directory == Path() else f"Run it: cd {directory} && composesim up")


def write_new(path: Path, text: str, *, force: bool) -> None:
    """Write a file, unless there is one; with `force`, keep that under another name."""
    if not os.path.lexists(path):
        write_file(path, text)
        say(f"wrote {path}")
    elif path.is_file() and path.read_bytes() == text.encode():
        say(f"kept {path}, which is the same")
    elif not force:
        say(f"kept {path}, which exists")
    else:
        names = (f"{path.name}.bak{number or ''}" for number in count())
        backup = next(each for each in map(path.with_name, names) if not os.path.lexists(each))
        path.rename(backup)
        write_file(path, text)
        say(f"wrote {path}; the old one is {backup}")
