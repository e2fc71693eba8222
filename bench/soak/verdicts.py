"""Check that verdicts are right while the machine is overloaded: right and wrong scripts, many at once, on both engines."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from bench.soak.setting import Row, Soak

NODES = 4
AT_ONCE = 12  # their 48 ranks, twelve masters and agents are the load
WANTED_LOAD = 60
RUNS_PER_TIME = 40
_HANG_TIMEOUT = "90s"
_PATIENCE_S = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judgement:
    """What a report has to say about a script: the verdict, the kind and rank of the cause, and the failed checks."""

    verdict: str
    cause: tuple[str, int] | None = None
    failed: frozenset[str] = frozenset()


_SCRIPTS = {
    "sums.py": _Judgement(verdict="passed"),
    "train_ddp.py": _Judgement(verdict="passed"),
    "verdict_overlap.py": _Judgement(verdict="passed", failed=frozenset({"sampler-overlap"})),
    "verdict_hang.py": _Judgement(verdict="hung", cause=("hang", 2), failed=frozenset({"hang", "collective-mismatch"})),
    "verdict_exception.py": _Judgement(verdict="failed", cause=("exception", 1)),
    "verdict_signal.py": _Judgement(verdict="failed", cause=("signal", 3)),
}


def measure(soak: Soak) -> Row:
    """Judge every script in turn on both engines, and continue with what earlier soaks have not done."""
    runs = RUNS_PER_TIME * soak.times
    engines, scripts = ("docker", "local"), list(_SCRIPTS)
    wanted = [(engines[number % 2], scripts[number // 2 % len(scripts)]) for number in range(runs)]
    done: list[list[Any]] = soak.progress.setdefault("done", [])
    loads: list[float] = soak.progress.setdefault("loads", [])
    left = iter(wanted[len(done) :])

    def work() -> None:
        for engine, script in left:
            if time.monotonic() > soak.deadline:
                return
            wrong = _wrong(soak, engine, script)
            done.append([engine, script, wrong])
            loads.append(os.getloadavg()[0])
            print(f"  {len(done)} of {runs}: {script} on {engine}: {wrong or 'right'}", flush=True)
            soak.save()

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        for future in [pool.submit(work) for _ in range(AT_ONCE)]:
            future.result()
    wrong = [f"{script} on {engine}: {why}" for engine, script, why in done if why]
    load = statistics.median(loads)
    return Row(
        what=f"verdicts of right and wrong scripts on {NODES} nodes, {AT_ONCE} runs at once",
        wanted=f"0 wrong of {runs} at a load of {WANTED_LOAD} (cause, rank and failed checks)",
        seen=f"{len(wrong)} wrong of {len(done)} at a median load of {load:.0f} (at most {max(loads):.0f})",
        reached=not wrong and len(done) >= runs and load >= WANTED_LOAD,
        notes=wrong,
    )


def _wrong(soak: Soak, engine: str, script: str) -> str:
    """Run a script, and return how its report differs from the right one; "" if it does not."""
    name = soak.new_name(engine)
    words = ("--nodes", str(NODES), "--hang-timeout", _HANG_TIMEOUT, "--json", script)
    process = replace(soak, engine=engine).start(name, *words)
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        return f"not over after {_PATIENCE_S:.0f} s, then exit code {process.wait()}"
    try:
        report = json.loads((soak.folder / f"{name}.out").read_text())
        seen = _Judgement(
            verdict=report["verdict"],
            cause=report["cause"] and (report["cause"]["kind"], report["cause"]["rank"]),
            failed=frozenset(check["id"] for check in report["checks"] if check["status"] == "failed"),
        )
    except (ValueError, KeyError):
        return f"exit code {status}: {(soak.folder / f'{name}.err').read_text()[-500:]}"
    return "" if seen == _SCRIPTS[script] else f"{seen}, exit code {status}: {report['cause'] or ''}"
