"""Row 5: measure how long it takes to render a large cluster, and whether that grows with the size alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from bench.goals import Goal, Row
from bench.measure import Contestant, NotMeasurableError, Samples, alternate
from bench.process import RunFailedError
from bench.setting import Setting

KEYS = ("5",)
THOUSAND = "composesim render, 1,000 nodes"
FIVE_THOUSAND = "composesim render, 5,000 nodes"
CHECK = "docker compose config -q of the 1,000"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="5",
        title="`render`, validated against the compose-spec schema",
        goals=[
            Goal(text="1,000 nodes ≤ 0.8 s", mine=THOUSAND, allowance=0.8),
            Goal(text="5,000 nodes ≤ 5 × 1,000 (linear)", mine=FIVE_THOUSAND, rival=THOUSAND, factor=5),
        ],
        notes=[
            "A node gets five folders. What was rendered is deleted at the end: after a deletion, ext4 is slow to make others."
        ],
    )
    try:
        # Beside the project, of which each render makes a copy.
        with tempfile.TemporaryDirectory(prefix="composesim-rendered.", dir="/var/tmp") as folder:
            row.samples = _samples(setting, setting.composesim(), Path(folder))
    except (NotMeasurableError, RunFailedError) as error:
        row.missing = dict.fromkeys((THOUSAND, FIVE_THOUSAND, CHECK), str(error))
    yield row


def _samples(setting: Setting, composesim: str, folder: Path) -> dict[str, Samples]:
    folders = (folder / str(number) for number in count())
    kept = next(folders)
    _render(setting, composesim, 1000, kept)  # the first render also compiles composesim's modules
    contestants = [
        Contestant(name=THOUSAND, measure=lambda: _render(setting, composesim, 1000, next(folders))),
        Contestant(name=FIVE_THOUSAND, measure=lambda: _render(setting, composesim, 5000, next(folders)), rounds=3),
    ]
    if shutil.which("docker"):
        contestants.append(Contestant(name=CHECK, measure=lambda: _check(setting, kept), rounds=3))
    return alternate(contestants, setting.repeats)


def _render(setting: Setting, composesim: str, nodes: int, folder: Path) -> float:
    command = [composesim, "render", str(folder), "--nodes", str(nodes), "--engine", "docker", "--image", "host"]
    seconds = setting.run([*command, "idle.py"]).seconds
    text = Path(folder, "docker-compose.yml").read_text()
    if f"node-{nodes - 1}" not in text:
        raise RunFailedError(f"the rendered file has no node-{nodes - 1}")
    return seconds


def _check(setting: Setting, folder: Path) -> float:
    return setting.run(["docker", "compose", "config", "--quiet"], folder=folder).seconds
