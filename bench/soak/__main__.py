"""Run a soak and write bench/reliability.md: `python -m bench.soak --minutes 10 --seed 1`."""

from __future__ import annotations

import argparse
import json
import sys
import time

from bench import machine
from bench.soak import (
    checkpoints,
    crashes,
    daemon_restarts,
    faults,
    flood,
    kills,
    load,
    recovery,
    stream,
    verdicts,
)
from bench.soak.leaks import left_of
from bench.soak.progress import continued
from bench.soak.setting import REPOSITORY, prepared
from bench.soak.table import as_json, as_markdown

_ROWS = {
    "recovery": recovery.measure,
    "faults": faults.measure,
    "crashes": crashes.measure,
    "daemon": daemon_restarts.measure,
    "flood": flood.measure,
    "stream": stream.measure,
    "checkpoints": checkpoints.measure,
    "large": load.measure_large,
    "busy": load.measure_busy,
    "verdicts": verdicts.measure,
    "kills": kills.measure,
}
_PAGE, _VALUES = REPOSITORY / "bench" / "reliability.md", REPOSITORY / "bench" / "reliability.json"


def main() -> int:
    """Measure the requested rows, and write all known ones."""
    parser = argparse.ArgumentParser(description="How much does a run withstand?")
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="minutes for each row that the next soak can continue: faults, large, busy, verdicts, kills; and for `stream`, at most 60",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=5,
        help="repetitions of each run in `large`, of ten runs in `busy`, forty in `verdicts`, twenty in `kills`",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["docker", "local"], default="docker")
    parser.add_argument("--only", nargs="*", choices=[*_ROWS], default=[*_ROWS], metavar="ROW")
    arguments = parser.parse_args()
    known = json.loads(_VALUES.read_text()) if _VALUES.exists() else {}
    with prepared(
        minutes=arguments.minutes, times=arguments.times, seed=arguments.seed, engine=arguments.engine
    ) as soak:
        for name in arguments.only:
            began, busy = time.monotonic(), machine.busy_cores()
            print(f"{name} …", flush=True)
            soak.deadline = began + 60 * arguments.minutes
            with continued(name, soak):
                row = _ROWS[name](soak)
            print(
                f"{name}: {row.seen} ({'reached' if row.reached else 'NOT reached'}, {time.monotonic() - began:.0f} s)"
            )
            known[name] = as_json(row, soak, busy=busy)
            ordered = {each: known[each] for each in _ROWS if each in known}
            _VALUES.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
            _PAGE.write_text(as_markdown(ordered))
        left = left_of(soak.prefix)
    print(f"left over: {', '.join(left) or 'nothing'}")
    return int(bool(left) or not all(known[name]["reached"] for name in arguments.only))


sys.exit(main())
