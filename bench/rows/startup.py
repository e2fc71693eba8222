"""Row 6: measure how long `composesim --help` takes, and what it imports."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from functools import partial

from bench.goals import Goal, Row
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.setting import Setting

KEYS = ("6",)
HELP = "composesim --help"
CLICK = 'python -c "import click"'
HEAVY = ("torch", "pydantic", "docker")
ROUNDS = 15  # each takes a fraction of a second, so more rounds are cheap and make the median more stable


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="6",
        title="`composesim --help`",
        goals=[Goal(text="≤ 2 × python -c 'import click'", mine=HELP, rival=CLICK, factor=2)],
    )
    try:
        composesim = setting.composesim()
    except NotMeasurableError as error:
        row.missing = {HELP: str(error)}
        yield row
        return
    commands = {HELP: [composesim, "--help"], CLICK: [str(setting.python), "-c", "import click"]}
    for command in commands.values():
        setting.run(command)  # compiles the modules for all later starts
    contestants = [
        Contestant(name=name, measure=partial(_seconds, setting, command)) for name, command in commands.items()
    ]
    row.samples = alternate(contestants, max(setting.repeats, ROUNDS))
    row.notes = [_what_is_imported(setting)]
    yield row


def _seconds(setting: Setting, command: Sequence[str]) -> float:
    return setting.run(command).seconds


def _what_is_imported(setting: Setting) -> str:
    command = [str(setting.python), "-X", "importtime", "-m", "compose_sim", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=setting.folder, env=setting.environment)
    modules = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in answer.stderr.splitlines()}
    loaded = [name for name in HEAVY if name in modules]
    if loaded:
        return f"Imported though it should not be: {', '.join(loaded)}."
    return f"None of {', '.join(HEAVY)} is imported."
