"""
Measure every row of the specification, and write results.md and results.json.

    make bench
    .venv/bin/python -m bench --only 1,2 --repeats 3

A row is measured in one go, with the contestants in turn. The other rows of results.json are kept unless they come from another
machine or other versions, so that an interrupted benchmark can be continued with `--only`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from bench import machine
from bench.goals import Row
from bench.leftovers import sweep
from bench.rows import (
    commands,
    curves,
    emulation,
    floors,
    overhead,
    phases,
    recipes,
    rendering,
    resuming,
    startup,
    teardown,
    training,
    viewing,
)
from bench.setting import BENCH, Setting, prepared
from bench.table import as_markdown

MODULES = (
    startup,
    commands,
    emulation,
    rendering,
    resuming,
    teardown,
    overhead,
    phases,
    recipes,
    training,
    curves,
    viewing,
    floors,
)  # the quick ones first, so that mistakes show early
KEYS = sorted((key for module in MODULES for key in module.KEYS), key=int)


def main() -> int:
    arguments = _parse_arguments()
    signal.signal(signal.SIGTERM, _interrupt)  # so that every `finally` runs
    results = _earlier_results(arguments.results / "results.json")
    try:
        with prepared(arguments.repeats) as setting:
            try:
                _measure_all(setting, arguments, results)
            finally:
                sweep(setting.prefix)
    except KeyboardInterrupt:
        print("bench: interrupted; the rows that were finished are kept", file=sys.stderr)
        return 130
    print((arguments.results / "results.md").read_text())
    return 0


def _parse_arguments() -> argparse.Namespace:
    description = "Measure composesim beside what else could do its work."
    parser = argparse.ArgumentParser(prog="python -m bench", description=description)
    parser.add_argument("--only", action="append", type=_keys, metavar="ROW[,ROW]", help=f"rows, of {', '.join(KEYS)}")
    parser.add_argument("--repeats", type=_positive, default=5, help="rounds of each row (default: 5)")
    parser.add_argument("--results", type=Path, default=BENCH, metavar="DIR", help="folder for the two files")
    arguments = parser.parse_args()
    arguments.only = [key for keys in arguments.only for key in keys] if arguments.only else KEYS
    return arguments


def _keys(text: str) -> list[str]:
    keys = text.split(",")
    for key in keys:
        if key not in KEYS:
            raise argparse.ArgumentTypeError(f"{key!r} is not a row; the rows are {', '.join(KEYS)}")
    return keys


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds; try 5")
    return int(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _earlier_results(path: Path) -> dict[str, Any]:
    here = machine.describe()
    if path.exists():
        earlier: dict[str, Any] = json.loads(path.read_text())
        if earlier["machine"] == here:
            return earlier
    return {"schema_version": 1, "machine": here, "rows": {}}


def _measure_all(setting: Setting, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    for module in MODULES:
        wanted = [key for key in module.KEYS if key in arguments.only]
        if not wanted:
            continue
        print(f"row {', '.join(wanted)}", file=sys.stderr, flush=True)
        busy = machine.busy_cores()
        for row in module.measure(setting, wanted):
            _keep(row, busy, results, arguments.results)


def _keep(row: Row, busy: float, results: dict[str, Any], folder: Path) -> None:
    figures = row.as_json()
    if busy > 0.25:
        figures["notes"].append(f"Something else kept {busy:.1f} cores busy in the second before the first run.")
    when = {"date": time.strftime("%Y-%m-%d %H:%M"), "commit": machine.commit()}
    results["rows"][row.key] = {**when, **figures}
    folder.mkdir(parents=True, exist_ok=True)
    if row.key in curves.KEYS and not row.missing:
        curves.draw({name: samples.seconds for name, samples in row.samples.items()}, folder / curves.FIGURE)
    (folder / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (folder / "results.md").write_text(as_markdown(results))
