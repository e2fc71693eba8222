"""Check that correct runs pass with many nodes, and while other programs use all cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bench.soak.setting import Row, Soak

LARGE = (("docker", 64), ("local", 128))
LARGEST = ("local", 200)
BUSY_PER_CORE = 4
RUNS_PER_TIME = 10
NODES = 4
AT_ONCE = 4  # one after another, a hundred runs would take an hour, of which the machine is busy with other work most of the time
_PATIENCE_S = 900.0


def measure_large(soak: Soak) -> Row:
    """Run as many nodes as the goals name, `times` times, and the most nodes once."""
    wanted = [each for each in LARGE for _ in range(soak.times)] + [LARGEST]
    _run(soak, wanted)
    return _row(
        soak,
        wanted,
        what="runs of many nodes",
        goal=f"{', '.join(f'{nodes} on {engine} {soak.times} of {soak.times}' for engine, nodes in LARGE)}, {LARGEST[1]} once",
    )


def measure_busy(soak: Soak) -> Row:
    """Run right scripts on both engines, several at once, while busy processes take all cores."""
    runs = RUNS_PER_TIME * soak.times
    wanted = [(engine, NODES) for _ in range(runs) for engine in ("docker", "local")]
    with _busy_cores(BUSY_PER_CORE):
        _run(soak, wanted, at_once=AT_ONCE)
    return _row(
        soak,
        wanted,
        what=f"right runs of {NODES} nodes, {AT_ONCE} at once, with {BUSY_PER_CORE} busy processes per core",
        goal=f"{runs} on Docker and {runs} on the local engine, all passed",
    )


def _run(soak: Soak, wanted: list[tuple[str, int]], *, at_once: int = 1) -> None:
    """Continue with the runs that earlier soaks have not done, until the deadline."""
    done: list[list[Any]] = soak.progress.setdefault("done", [])
    left = wanted[len(done) :]
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        while left and time.monotonic() < soak.deadline:
            some, left = left[:at_once], left[at_once:]
            began = time.monotonic()
            for (engine, nodes), why in zip(some, pool.map(lambda each: _failure(soak, *each), some), strict=True):
                done.append([engine, nodes, why])
                print(f"  {nodes} on {engine}: {why or 'passed'}", flush=True)
            print(f"  {len(done)} of {len(wanted)}, {time.monotonic() - began:.0f} s", flush=True)
            soak.save()


def _row(soak: Soak, wanted: list[tuple[str, int]], *, what: str, goal: str) -> Row:
    done = soak.progress["done"]
    failed = [f"{nodes} nodes on {engine}: {why}" for engine, nodes, why in done if why]
    rest = "" if len(done) == len(wanted) else f", {len(wanted) - len(done)} not yet begun"
    return Row(
        what=what,
        wanted=goal,
        seen=f"{len(done) - len(failed)} of {len(done)} passed{rest}",
        reached=not failed and not rest,
        notes=failed,
    )


def _failure(soak: Soak, engine: str, nodes: int) -> str:
    """Run the script, and return why it did not pass, "" if it did."""
    name = soak.new_name(f"{engine}-{nodes}")
    process = replace(soak, engine=engine).start(name, "--nodes", str(nodes), "sums.py")
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"not over after {_PATIENCE_S:.0f} s, then exit code {process.wait()}"
    words = (soak.folder / f"{name}.err").read_text().strip().splitlines()
    return f"exit code {status}: {words[-1] if words else ''}" if status else ""


@contextmanager
def _busy_cores(each: int) -> Iterator[None]:
    """Keep every core that we may use busy with this many processes."""
    wanted = each * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(wanted)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
