"""Check that everything is removed soon after composesim was killed with SIGKILL, in each phase, with a fault active."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

from bench.soak.leaks import left_of
from bench.soak.setting import COMMAND, Row, Soak

LIMIT_S = 10.0
PATIENCE_S = 180.0
NODES = 3
# Phase -> arguments of `composesim fault` or `link` that are active when composesim is killed; empty if none is possible.
PHASES: dict[str, tuple[str, ...]] = {
    "containers being made": (),
    "nodes meeting": (),
    "training, a node paused": ("fault", "pause", "node-1"),
    "training, a node stopped": ("fault", "stop", "node-1"),
    "training, a node killed": ("fault", "kill", "node-0"),
    "training, CPU limited": ("fault", "cpu", "node-1", "--limit", "0.2"),
    "training, links shaped": ("link", "20mbit"),
    "training, a node isolated": ("fault", "isolate", "node-1"),
    "training, ranks stopped": ("fault", "rank-stop", "1"),
    "stopping, a node paused": ("fault", "pause", "node-1"),
}


def measure(soak: Soak) -> Row:
    """Kill one run in each phase, and measure how long it takes until nothing of it is left."""
    took, notes = [], []
    for phase, words in PHASES.items():
        try:
            seconds = _crash(soak, phase, words)
        except TimeoutError as error:
            notes.append(f"{phase}: {error}")
            continue
        took.append(seconds)
        notes.append(f"{phase}: nothing left after {seconds:.1f} s")
    clean = sum(seconds <= LIMIT_S for seconds in took)
    return Row(
        what="`kill -9` of composesim in each phase, with a fault active",
        wanted=f"all clean ≤ {LIMIT_S:.0f} s later, shaping and paused nodes included",
        seen=f"{clean} of {len(PHASES)} clean, the slowest after {max(took, default=0.0):.1f} s",
        reached=clean == len(PHASES),
        notes=notes,
    )


def _crash(soak: Soak, phase: str, words: tuple[str, ...]) -> float:
    name = soak.new_name()
    words_of_run = ("--nodes", str(NODES), "--elastic", f"1:{NODES}", "crash_loop.py")
    process = soak.start(name, *words_of_run)
    try:
        if phase == "containers being made":
            _wait(lambda: bool(left_of(name)), "anything was made")
        elif phase == "nodes meeting":
            _wait(lambda: bool(soak.events(name, "master")), "the master began")
        else:
            _wait(lambda: _has_stepped(soak, name), "the training began")
            _say(soak, name, words)
        if phase.startswith("stopping"):
            process.send_signal(signal.SIGTERM)  # SIGINT may be ignored if we run in the background
            _wait(lambda: any(event["kind"] == "stopping" for event in soak.events(name)), "it was being stopped")
    finally:
        process.kill()
        process.wait()
    killed = time.monotonic()
    _wait(lambda: not left_of(name), "everything was gone")
    return time.monotonic() - killed


def _say(soak: Soak, name: str, words: tuple[str, ...]) -> None:
    verb, *rest = words
    if verb == "fault":
        kind, *rest = rest
        argv = [*COMMAND, "fault", kind, "--run", name, *rest]
    else:
        argv = [*COMMAND, verb, "--run", name, *rest]
    done = subprocess.run(argv, cwd=soak.folder, env=soak.environment, capture_output=True, text=True)
    if done.returncode:
        raise TimeoutError(f"could not be done: {done.stderr.strip().splitlines()[:1]}")


def _has_stepped(soak: Soak, name: str) -> bool:
    return any(event["kind"] == "step" for event in soak.events(name, "node-0"))


def _wait(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come about in {PATIENCE_S:.0f} s that {what}")
        time.sleep(0.1)
