"""Rows 17 and 18: measure what the page of a run and the times that observers record take from the steps of a script."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from http.client import HTTPConnection

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.process import RunFailedError
from bench.setting import BENCH, Setting

KEYS = ("17", "18")
SCRIPT = "timed_steps.py"
SEEN, UNSEEN = "composesim up --view, with a reader", "composesim up"
OBSERVED, BARE = "composesim up, one rank", "python, the same rank"
FEATURES, STEPS = 512, 1000  # of row 17
TINY, OBSERVED_STEPS = 8, 1000  # of row 18: up to step 1,000, every step is recorded


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    rows = {
        "17": Row(
            key="17",
            title="steps while the page is open",
            goals=[Goal(text="less than 1 % slower", mine=SEEN, rival=UNSEEN, factor=1.01)],
            notes=[
                f"Seconds of {STEPS} steps of the script, two nodes on the local engine; the start is not counted.",
                "The reader takes all messages and draws nothing: a browser that runs on the same machine takes its CPU time.",
            ],
        ),
        "18": Row(
            key="18",
            title="what observers take from a step, CPU time",
            goals=[
                Goal(text="≤ 0.2 ms per step", mine=OBSERVED, rival=BARE, factor=1, allowance=0.0002 * OBSERVED_STEPS)
            ],
            notes=[
                f"CPU seconds of {OBSERVED_STEPS} steps of the rank's process, with all observers of `up` and without emulated CUDA,",
                "whose cost row 7 measures.",
            ],
        ),
    }
    shutil.copy(BENCH / "scripts" / SCRIPT, setting.folder)
    contestants = {
        "17": ((SEEN, partial(_seen, setting)), (UNSEEN, partial(_up, setting, "wall", "2", FEATURES, STEPS))),
        "18": (
            (OBSERVED, partial(_up, setting, "cpu", "1", TINY, OBSERVED_STEPS, "--gpus", "none")),
            (BARE, partial(_bare, setting)),
        ),
    }
    for key in wanted:
        row = rows[key]
        try:
            setting.composesim()
            found = [Contestant(name=name, measure=each) for name, each in contestants[key]]
            row.samples = alternate(found, setting.repeats)
        except (NotMeasurableError, RunFailedError) as error:
            row.missing = {goal.mine: str(error) for goal in row.goals}
        yield row


def _command(setting: Setting, name: str, nodes: str, features: int, steps: int, *options: str) -> list[str]:
    shape = ("--engine", "local", "--nodes", nodes, "--name", name, "--env", "OMP_NUM_THREADS=1", *options)
    return [setting.composesim(), "up", *shape, SCRIPT, str(features), str(steps)]


def _up(setting: Setting, clock: str, nodes: str, features: int, steps: int, *options: str) -> float:
    name = setting.new_name()
    command = _command(setting, name, nodes, features, steps, *options)
    try:
        return _seconds(setting.run(command, expect="seconds").output, clock)
    finally:
        _remove(setting, name)


def _seen(setting: Setting) -> float:
    """Return the seconds of a run whose page is read to the end."""
    name = setting.new_name()
    command = _command(setting, name, "2", FEATURES, STEPS, "--view")
    process = subprocess.Popen(
        command,
        cwd=setting.folder,
        env=setting.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://(127\.0\.0\.1:\d+)/#token=(\S+)", line):
                _read_page(*found.groups())
        if process.wait() != 0:
            raise RunFailedError(f"{' '.join(command)} failed: {''.join(lines[-5:])}")
        return _seconds("".join(lines), "wall")
    finally:
        process.kill()
        process.wait()
        _remove(setting, name)


def _read_page(place: str, token: str) -> None:
    """Take all messages of a run, until it is over."""
    connection = HTTPConnection(place, timeout=300)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    while answer.read1(1 << 20):
        pass


def _bare(setting: Setting) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = setting.environment | alone | {"OMP_NUM_THREADS": "1"}
    command = [str(setting.python), SCRIPT, str(TINY), str(OBSERVED_STEPS)]
    return _seconds(setting.run(command, environment=environment, expect="seconds").output, "cpu")


def _seconds(output: str, clock: str) -> float:
    found = re.search(r"seconds (\{.*\})", output)
    if not found:
        raise RunFailedError(f"the script printed no seconds: {output[-500:]}")
    seconds: float = json.loads(found[1])[clock]
    return seconds


def _remove(setting: Setting, name: str) -> None:
    sweep(name)
    shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)
