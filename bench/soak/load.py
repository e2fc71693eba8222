"""Do right runs pass with many nodes, and while other work takes all cores?"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench.soak.setting import Row, Soak

LARGE = (("docker", 64), ("local", 128))
LARGEST = ("local", 200)
BUSY_PER_CORE = 4
RUNS_PER_TIME = 10
NODES = 4
_PATIENCE_S = 900.0


def measure_large(soak: Soak) -> Row:
    """Run as many nodes as the goals name, `times` times, and the most nodes once."""
    runs = [each for each in LARGE for _ in range(soak.times)] + [LARGEST]
    failed = [f"{nodes} nodes on {engine}: {why}" for engine, nodes in runs if (why := _failure(soak, engine, nodes))]
    return Row(
        what="runs of many nodes",
        wanted=f"{', '.join(f'{nodes} on {engine} {soak.times} of {soak.times}' for engine, nodes in LARGE)}, {LARGEST[1]} once",
        seen=f"{len(runs) - len(failed)} of {len(runs)} passed",
        reached=not failed,
        notes=failed,
    )


def measure_busy(soak: Soak) -> Row:
    """Run right scripts on both engines while busy processes take all cores."""
    runs = RUNS_PER_TIME * soak.times
    with _busy_cores(BUSY_PER_CORE):
        failed = [
            f"{engine}: {why}"
            for engine in ("docker", "local")
            for _ in range(runs)
            if (why := _failure(soak, engine, NODES))
        ]
    return Row(
        what=f"right runs of {NODES} nodes with {BUSY_PER_CORE} busy processes per core",
        wanted=f"{runs} on Docker and {runs} on the local engine, all passed",
        seen=f"{2 * runs - len(failed)} of {2 * runs} passed",
        reached=not failed,
        notes=failed,
    )


def _failure(soak: Soak, engine: str, nodes: int) -> str:
    """Run the script, and return why it did not pass, "" if it did."""
    name = soak.new_name()
    process = replace(soak, engine=engine).start(name, "--nodes", str(nodes), "--force", "sums.py")
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"not over after {_PATIENCE_S:.0f} s, then exit code {process.wait()}"
    words = (soak.folder / f"{name}.err").read_text().strip().splitlines()
    return f"exit code {status}: {words[-1] if words else ''}" if status else ""


@contextmanager
def _busy_cores(each: int) -> Iterator[None]:
    """Keep every core that we may use busy with so many processes."""
    wanted = each * len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(wanted)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
