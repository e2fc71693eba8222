"""Rows 10 and 11: measure how long each phase of `up` takes, beside what no launcher can avoid."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import NotMeasurableError, Samples
from bench.process import RunFailedError, run_together
from bench.setting import Setting

ENGINES = {"10": "docker", "11": "local"}
KEYS = tuple(ENGINES)
NODES = 4
AFTER = "after the exit of the last rank"
_AFTER = ("nodes stop", "checks and report", "nodes removed", "last clean-up")  # the phases behind `ranks exit`
_PHASE = re.compile(r"^(\S.*?)  +(\d+\.\d\d) s +(\d+\.\d\d) s$", re.MULTILINE)


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    for key in wanted:
        yield _row(setting, key, ENGINES[key])


def _row(setting: Setting, key: str, engine: str) -> Row:
    row = Row(
        key=key,
        title=f"the phases of `up --nodes {NODES} train_ddp.py`, {engine} engine",
        goals=[Goal(text="≤ 0.5 s", mine=AFTER, allowance=0.5)],
        notes=[
            "The phases are those of `up --profile-phases`, in order; docs/inspect.md describes them.",
            f"`{AFTER}` is the sum of the last four.",
            "The floor holds for the phases in which torch is imported: before that, no launcher can start a rank.",
        ],
    )
    imports = NODES if engine == "docker" else 1
    floor = f"floor: import torch in {imports} process{'es' if imports > 1 else ''} at once"
    try:
        if engine == "docker":
            setting.require_engine()
        command = [setting.composesim(), "up", "--nodes", str(NODES), "--engine", engine, "--profile-phases"]
        for _ in range(setting.repeats):
            _add(row, floor, _import_torch(setting, imports))
            phases = _phases(setting, command)
            for phase, seconds in phases:
                _add(row, phase, seconds)
            _add(row, AFTER, sum(seconds for phase, seconds in phases if phase in _AFTER))
    except (NotMeasurableError, RunFailedError) as error:
        row.missing = {"up": str(error)}
    return row


def _add(row: Row, name: str, seconds: float) -> None:
    row.samples.setdefault(name, Samples()).seconds.append(seconds)


def _import_torch(setting: Setting, processes: int) -> float:
    command = [str(setting.python), "-c", "import torch, torch.distributed"]
    return run_together([command] * processes, folder=setting.folder, environment=setting.environment).seconds


def _phases(setting: Setting, command: Sequence[str]) -> list[tuple[str, float]]:
    name = setting.new_name()
    try:
        output = setting.run([*command, "--name", name, "train_ddp.py"]).output
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)
    return [(phase, float(took)) for phase, took, _ in _PHASE.findall(output)]
