"""Rows 13 to 16: measure `plan`, 100 tiny steps, what emulated GPUs add to a whole command, and what `check` takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial

from bench.goals import Goal, Row
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.process import RunFailedError
from bench.rivals import torchrun
from bench.rows.training import up
from bench.setting import BENCH, REPOSITORY, Setting

KEYS = ("13", "14", "15", "16")
PLAN = "composesim plan --nodes 4 train_ddp.py"
TINY, TINY_SCRIPT = "composesim up, docker, 100 tiny steps", "tiny_steps.py"
EMULATED, PLAIN = "composesim up, docker, --gpus emulated", "composesim up, docker, --gpus none"
# The second evaluates on every rank, so that it takes `check` longer than most of tests/zoo.
CHECKED = ("train_ddp.py", "right_every_node_reports.py")
CHECKED_FROM = REPOSITORY / "tests" / "zoo" / "metric-local"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    rows = {
        "13": Row(key="13", title="`plan`", goals=[Goal(text="≤ 0.25 s", mine=PLAN, allowance=0.25)]),
        "14": Row(
            key="14",
            title="`up --nodes 4` on Docker with 100 tiny steps",
            goals=[Goal(text="≤ 0.4 × four bare torchrun", mine=TINY, rival=torchrun.NAME, factor=0.4)],
        ),
        "15": Row(
            key="15",
            title="emulated CUDA, whole command",
            goals=[Goal(text="≤ 0.1 s more than without", mine=EMULATED, rival=PLAIN, factor=1, allowance=0.1)],
            notes=["train_ddp.py uses CUDA where there is a GPU, so it trains on the emulated ones."],
        ),
        "16": Row(
            key="16",
            title="`check` beside `up`, CPU time",
            goals=[
                Goal(text=f"{script}: ≤ 2 × up", mine=f"check {script}", rival=f"up {script}", factor=2)
                for script in CHECKED
            ],
            notes=["CPU seconds of the whole command on the local engine, four ranks; not the wall clock."],
        ),
    }
    for key in wanted:
        row = rows[key]
        try:
            row.samples = alternate(_contestants(setting, key), setting.repeats)
        except (NotMeasurableError, RunFailedError) as error:
            row.missing = {goal.mine: str(error) for goal in row.goals}
        yield row


def _contestants(setting: Setting, key: str) -> list[Contestant]:
    composesim = setting.composesim()
    if key == "13":
        command = [composesim, "plan", "--nodes", "4", "train_ddp.py"]
        setting.run(command)  # compiles the modules for all later starts
        return [Contestant(name=PLAN, measure=lambda: setting.run(command).seconds)]
    if key == "16":
        shutil.copy(CHECKED_FROM / CHECKED[1], setting.folder)
        return [
            Contestant(name=f"{verb} {script}", measure=partial(_cpu_seconds, setting, verb, script))
            for script in CHECKED
            for verb in ("check", "up")
        ]
    setting.require_engine()
    if key == "14":
        shutil.copy(BENCH / "scripts" / TINY_SCRIPT, setting.folder)
        expect = "trained on rank"
        return [
            Contestant(
                name=TINY,
                measure=partial(up, setting, "--engine", "docker", "--gpus", "none", script=TINY_SCRIPT, expect=expect),
            ),
            torchrun.contestant(setting, TINY_SCRIPT, expect),
        ]
    return [
        Contestant(name=name, measure=partial(up, setting, "--engine", "docker", "--gpus", gpus))
        for name, gpus in ((EMULATED, "emulated"), (PLAIN, "none"))
    ]


def _cpu_seconds(setting: Setting, verb: str, script: str) -> float:
    shape = ("--engine", "local", "--nodes", "2", "--nproc-per-node", "2", "--name", setting.new_name())
    return setting.run([setting.composesim(), verb, *shape, script]).cpu_seconds
