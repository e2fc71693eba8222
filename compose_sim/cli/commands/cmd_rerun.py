"""Run the command of an earlier run again."""

from __future__ import annotations

import os
import shlex
import sys

import click

from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import run_name, select_folder
from compose_sim.cli.spelling import normalized
from compose_sim.errors import SpecError


@click.command("rerun")
@click.argument("run", required=False, metavar="[RUN]", callback=run_name)
@click.pass_context
def command(context: click.Context, run: str | None) -> None:
    """Run the command that started RUN (default: the latest run) again, in the folder in which it was typed.

    Files and environment variables are the current ones.
    """
    record = select_folder(run)
    folder, words = record.read_command()
    if record.is_claimed():
        raise SpecError(f"the run '{record.name}' is running", hint=f"composesim wait --run {record.name}")
    typed = shlex.join(["composesim", *words])
    if any(
        normalized(word).startswith("--allow-mount") for word in words
    ):  # the record is a file, and none may allow it
        raise SpecError(f"the run '{record.name}' used --allow-mount, which rerun does not repeat", hint=typed)
    if not folder.is_dir():
        raise SpecError(f"the folder '{folder}' of the run '{record.name}' does not exist", hint=typed)
    say(f"cd {shlex.quote(str(folder))} && {typed}")
    os.chdir(folder)
    sys.argv[1:] = words
    context.find_root().command.main(args=list(words), prog_name="composesim", standalone_mode=False)
