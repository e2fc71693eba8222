"""Row 19: measure how much longer `check --resume`, with its three runs, takes than `up` with one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.setting import Setting

KEYS = ("19",)
CHECK, UP = ("check", "--resume"), ("up",)
JOB = ("--nodes", "4", "train_ddp.py", "--epochs", "1")  # as in the README


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="19",
        title="`check --resume` of the README's job: three runs",
        goals=[
            Goal(text=f"≤ 4 × up, {engine}", mine=_name(CHECK, engine), rival=_name(UP, engine), factor=4)
            for engine in ("local", "docker")
        ],
        notes=["Whole commands. The check also copies the project, and records the state of each step."],
    )
    try:
        setting.composesim()
        engines = ["local"]
        try:
            setting.require_engine()
            engines.append("docker")
        except NotMeasurableError as error:
            row.missing = {_name(words, "docker"): str(error) for words in (CHECK, UP)}
        found = [
            Contestant(name=_name(words, engine), measure=partial(_run, setting, words, engine))
            for engine in engines
            for words in (CHECK, UP)
        ]
        row.samples = alternate(found, setting.repeats)
    except NotMeasurableError as error:
        row.missing = {goal.mine: str(error) for goal in row.goals}
    yield row


def _name(words: Sequence[str], engine: str) -> str:
    return f"composesim {' '.join(words)}, {engine}"


def _run(setting: Setting, words: Sequence[str], engine: str) -> float:
    name = setting.new_name()
    try:
        return setting.run(
            [setting.composesim(), *words, "--engine", engine, "--name", name, *JOB], expect="✔ passed"
        ).seconds
    finally:
        sweep(name)
