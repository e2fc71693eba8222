"""Profile some steps of a run with torch.profiler, without changing the script."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.commands.interventions import running_folder
from compose_sim.cli.console import say
from compose_sim.cli.run_lookup import FILE, named_folder, run_option, seconds
from compose_sim.cli.views.trace import write_trace

_MOST_STEPS = 100  # a profile of a few steps of a large model has hundreds of megabytes


@click.command("profile")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option(
    "--steps", type=click.IntRange(1, _MOST_STEPS), default=5, show_default=True, help="Optimizer steps to profile."
)
@click.option("--timeout", "timeout_s", callback=seconds, default="60s", show_default=True, help="How long to wait.")
@click.option(
    "-o", "--output", type=FILE, help="The file to write (default: RUN.profile.json); FILE.zip as in `trace`."
)
def command(name: str | None, run: str | None, steps: int, timeout_s: float, output: Path | None) -> None:
    """Profile the same steps on all ranks of RUN with torch.profiler, and write them into the trace of the run."""
    from compose_sim.view.profiles import take_profiles

    folder = named_folder(name or run) if name and "/" in name else running_folder(name or run)
    taken = take_profiles(folder, steps=steps, timeout_s=timeout_s)
    ranks = ", ".join(str(profile.rank) for profile in sorted(taken.profiles, key=lambda each: each.rank))
    say(f"steps {taken.first} to {taken.first + steps - 1} of rank {ranks}")
    for rank, why in sorted(taken.missing.items()):
        say(f"rank {rank}: no profile: {why}")
    say(write_trace(output or Path(f"{folder.name}.profile.json"), folder, taken.profiles))
