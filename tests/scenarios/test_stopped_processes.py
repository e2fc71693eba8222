"""A composesim that stands still for a while, as on a laptop that sleeps, judges the run as if it had not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from compose_sim.engine.local.process_labels import labeled_processes
from tests.scenarios.conftest import Project, eventually, wait_for_line

NODE_TIMEOUT_S = 3.0
# Every rank meets the others until the test writes the file `enough`.
MEETS = """
import pathlib
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
print("begun", flush=True)
while True:
    ended = torch.tensor([float(pathlib.Path("enough").exists())])
    dist.all_reduce(ended, op=dist.ReduceOp.MIN)
    if ended:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


def command(up: subprocess.Popen[str], run: str) -> list[psutil.Process]:
    return [psutil.Process(up.pid)]


def supervisor(up: subprocess.Popen[str], run: str) -> list[psutil.Process]:
    children = psutil.Process(up.pid).children()
    return [each for each in children if "compose_sim.engine.lifetime.supervisor" in each.cmdline()]


def everything(up: subprocess.Popen[str], run: str) -> list[psutil.Process]:
    nodes = [psutil.Process(each.pid) for each in labeled_processes(run)]
    return [*command(up, run), *supervisor(up, run), *nodes]


@pytest.mark.train
@pytest.mark.parametrize("chosen", [command, supervisor, everything], ids=lambda chosen: chosen.__name__)
def test_a_run_that_stood_still_passes(
    project: Project, chosen: Callable[[subprocess.Popen[str], str], list[psutil.Process]]
) -> None:
    run = project.named("still")
    project.write("train.py", MEETS)
    words = ("--engine", "local", "--nodes", "2", "--node-timeout", f"{NODE_TIMEOUT_S:g}s", "--name", run, "train.py")
    up = project.start("up", *words)
    wait_for_line(up, "begun")
    stopped = chosen(up, run)
    assert stopped

    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        up.wait(4 * NODE_TIMEOUT_S)
    for process in reversed(stopped):
        process.send_signal(signal.SIGCONT)
    project.write("enough", "")

    _, stderr = up.communicate(timeout=120)
    assert up.returncode == 0, stderr
    eventually(lambda: not labeled_processes(run), within=60, what="everything is gone")
