"""
Check that nothing is left after SIGKILL of the command, of its supervisor, or of both, at any moment of a run.

With both gone, the nodes end themselves; the stopped containers and their network are removed by the next run in the project, or by
`composesim prune`.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from bench.soak.leaks import left_of, running_of
from bench.soak.setting import COMMAND, Row, Soak

NODES = 3
KILLS_PER_TIME = 20
VICTIMS = ("command", "supervisor", "both")
_MOMENTS_S = (0.2, 8.0)  # after the start of the command: from its imports to its training
_LIMIT_S = 60.0  # ranks whose owners are gone end themselves after some 20 s
_PATIENCE_S = 300.0


def measure(soak: Soak) -> Row:
    """Kill runs in turn on both engines, and continue with what earlier soaks have not done."""
    wanted = KILLS_PER_TIME * soak.times
    done: list[list[Any]] = soak.progress.setdefault("done", [])
    while len(done) < wanted and time.monotonic() < soak.deadline:
        number = len(done)
        engine, victim = ("docker", "local")[number % 2], VICTIMS[number // 2 % len(VICTIMS)]
        moment = random.Random(f"{soak.seed} {number}").uniform(*_MOMENTS_S)
        found = _kill(replace(soak, engine=engine), victim, moment)
        done.append([engine, victim, moment, found])
        print(
            f"  {len(done)} of {wanted}: {victim} on {engine} after {moment:.1f} s: {found or 'nothing left'}",
            flush=True,
        )
        soak.save()
    found = [f"{victim} on {engine} after {moment:.1f} s: {what}" for engine, victim, moment, what in done if what]
    return Row(
        what="SIGKILL of the command, its supervisor or both, at random moments on both engines",
        wanted=f"0 leaks in {wanted} (with both killed: nothing runs, and `prune` removes the rest), "
        "and a run whose supervisor alone is killed passes",
        seen=f"{len(found)} leaks or failures in {len(done)}",
        reached=not found and len(done) >= wanted,
        notes=found,
    )


def _kill(soak: Soak, victim: str, moment_s: float) -> str:
    """Run, kill at that moment, and return what is left when time is up; "" if nothing is."""
    name = soak.new_name(soak.engine)
    process = soak.start(name, "--nodes", str(NODES), "train_ddp.py")
    command = psutil.Process(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(moment_s)
    victims = []
    with suppress(psutil.NoSuchProcess):
        supervisors = [child for child in command.children() if _is_supervisor(child)]
        victims = {"command": [command], "supervisor": supervisors, "both": [*supervisors, command]}[victim]
    for each in victims:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    status = process.wait(_PATIENCE_S)
    if victim == "supervisor" and status:
        return f"exit code {status}: {(soak.folder / f'{name}.err').read_text()[-300:]}"
    left = _left_after(_LIMIT_S, running_of if victim == "both" else left_of, name)
    if victim == "both" and not left:
        subprocess.run([*COMMAND, "prune"], cwd=soak.folder, env=soak.environment, check=True, capture_output=True)
        left = left_of(name)
    return ", ".join(left)


def _left_after(limit_s: float, look: Callable[[str], list[str]], name: str) -> list[str]:
    """Return what is left of a run as soon as that is nothing, or else when time is up."""
    deadline = time.monotonic() + limit_s
    while (left := look(name)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


def _is_supervisor(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "compose_sim.engine.lifetime.supervisor" in process.cmdline()
    return False
