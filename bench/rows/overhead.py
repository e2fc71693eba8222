"""Row 3: measure what composesim adds to plain `docker compose` with the file that composesim rendered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.process import RunFailedError
from bench.rows.raw_compose import RawCompose
from bench.setting import Setting

KEYS = ("3",)
SIZES = (4, 32)


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="3",
        title="composesim's own cost over `docker compose up` and `down` of the file it rendered",
        goals=[
            Goal(text=f"{nodes} nodes: ≤ 0.5 s + 5 %", mine=_mine(nodes), rival=_raw(nodes), factor=1.05, allowance=0.5)
            for nodes in SIZES
        ],
        notes=["A script that does nothing, `--launcher env` and `--image host`, so that no node loads torch."],
    )
    for nodes in SIZES:
        names = (_mine(nodes), _raw(nodes))
        try:
            setting.require_engine()
            composesim = setting.composesim()
            raw = RawCompose(setting, nodes, "idle.py")
        except (NotMeasurableError, RunFailedError) as error:
            row.missing.update(dict.fromkeys(names, str(error)))
            continue
        try:
            mine = Contestant(name=names[0], measure=partial(_up, setting, composesim, nodes))
            rival = Contestant(name=names[1], measure=raw.up_wait_down)
            row.samples.update(alternate([mine, rival], setting.repeats))
        finally:
            raw.remove()
    yield row


def _up(setting: Setting, composesim: str, nodes: int) -> float:
    name = setting.new_name()
    command = [composesim, "up", "--nodes", str(nodes), "--engine", "docker", "--image", "host"]
    command += ["--launcher", "env", "--name", name, "idle.py"]
    try:
        return setting.run(command).seconds
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)


def _mine(nodes: int) -> str:
    return f"composesim up, {nodes} idle nodes"


def _raw(nodes: int) -> str:
    return f"docker compose up -d, docker wait, down: {nodes} idle nodes"
