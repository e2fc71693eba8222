"""Row 4: measure how fast 32 running nodes are removed, compared with the fastest way in Docker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.process import RunFailedError
from bench.rows.raw_compose import RawCompose
from bench.setting import Setting

KEYS = ("4",)
NODES = 32
DOWN = f"composesim down, {NODES} running nodes"
REMOVE = f"docker rm -f of all {NODES} at once, docker network rm"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="4",
        title=f"`down` of {NODES} running nodes",
        goals=[Goal(text="≤ 1.05 × a parallel docker rm -f", mine=DOWN, rival=REMOVE, factor=1.05)],
        notes=["`docker rm -f` meets the same rendered file, started by plain `docker compose`."],
    )
    try:
        setting.require_engine()
        composesim = setting.composesim()
        raw = RawCompose(setting, NODES, "waiting.py")
    except (NotMeasurableError, RunFailedError) as error:
        row.missing = {DOWN: str(error), REMOVE: str(error)}
        yield row
        return

    def force_remove() -> float:
        raw.start()
        return raw.force_remove()

    contestants = [
        Contestant(name=DOWN, measure=lambda: _down(setting, composesim)),
        Contestant(name=REMOVE, measure=force_remove),
    ]
    try:
        row.samples = alternate(contestants, setting.repeats)
    finally:
        raw.remove()
    yield row


def _down(setting: Setting, composesim: str) -> float:
    name = setting.new_name()
    start = [composesim, "up", "--detach", "--nodes", str(NODES), "--engine", "docker", "--image", "host"]
    start += ["--launcher", "env", "--name", name, "waiting.py"]
    try:
        setting.run(start)
        seconds = setting.run([composesim, "down", "--run", name]).seconds
        left = sweep(name)
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)
    if left:
        raise RunFailedError(f"`composesim down` left {len(left)} things behind: {', '.join(left[:5])}")
    return seconds
