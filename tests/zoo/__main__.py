"""Measure how good the checks are. `python -m tests.zoo [ID…]` exits with 1 unless precision and recall are both 1.0."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from difflib import get_close_matches
from pathlib import Path

from compose_sim.core.request.names import CHECK_IDS
from tests.zoo.runner import KINDS, Example, Outcome, examples, read_example, run_examples


def main() -> int:
    """Run the scripts; print each outcome as it arrives, then the tables."""
    options = _options()
    begun, outcomes = time.monotonic(), []
    chosen = _chosen(options.what)
    known = _resumed(options.resume, chosen)
    for outcome in run_examples(
        [each for each in chosen if each.name not in known],
        jobs=options.jobs,
        quick=options.quick,
        gpus=options.gpus,
        options=shlex.split(options.options),
    ):
        outcomes.append(outcome)
        print(_line(outcome, verbose=options.verbose), flush=True)
        if options.resume and outcome.is_right:
            with options.resume.open("a") as file:
                file.write(json.dumps([outcome.example.name, sorted(outcome.said), outcome.seconds]) + "\n")
    outcomes += known.values()
    _print_table(outcomes)
    _print_kinds(outcomes)
    mistakes = [outcome for outcome in outcomes if not outcome.is_right]
    print(f"\n{len(outcomes)} scripts in {time.monotonic() - begun:.0f} s, {len(mistakes)} of them judged wrongly")
    for mistake in mistakes:
        print(f"  {mistake.example.path}")
    return 1 if mistakes or not outcomes else 0


def _chosen(what: list[str]) -> list[Example]:
    """Return the scripts of the named checks or paths; all scripts if nothing is named."""
    ids = [word for word in what if not word.endswith(".py")]
    for word in ids:
        if word not in CHECK_IDS:
            near = get_close_matches(word, CHECK_IDS, n=1)
            sys.exit(f"there is no check named '{word}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    scripts = [read_example(Path(word).resolve()) for word in what if word.endswith(".py")]
    return scripts + (examples(ids) if ids or not scripts else [])


def _resumed(file: Path | None, chosen: list[Example]) -> dict[str, Outcome]:
    """Return the outcomes of an earlier part that were right, by name; the file is of one commit, and the user deletes it."""
    if file is None or not file.exists():
        return {}
    by_name = {each.name: each for each in chosen}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        name: Outcome(example=by_name[name], said=frozenset(said), seconds=seconds)
        for name, said, seconds in lines
        if name in by_name
    }


def _line(outcome: Outcome, *, verbose: bool) -> str:
    mark = "✔" if outcome.is_right else "✘"
    said = ", ".join(sorted(outcome.said)) or "nothing"
    words = f"{mark} {outcome.example.name:<50} {outcome.seconds:>5.1f} s  {said}"
    if not outcome.is_right or verbose:
        for name, ids in (("missed", outcome.missed), ("false alarm", outcome.false_alarms)):
            words += f"\n    {name}: {', '.join(sorted(ids))}" if ids else ""
        words += "".join(f"\n    {detail}" for detail in outcome.details)
        words += "".join(f"\n    ! {line}" for line in outcome.error.splitlines())
    return words


def _print_table(outcomes: list[Outcome]) -> None:
    """Print precision and recall for each check, and the time that its scripts took."""
    print(f"\n{'check':<22} scripts  precision  recall  seconds")
    totals = [0, 0, 0]
    for name in CHECK_IDS:
        true = sum(name in outcome.said & outcome.example.expects for outcome in outcomes)
        false = sum(name in outcome.false_alarms for outcome in outcomes)
        missed = sum(name in outcome.missed for outcome in outcomes)
        mine = [outcome for outcome in outcomes if outcome.example.check == name]
        totals = [total + more for total, more in zip(totals, (true, false, missed), strict=True)]
        if mine or true or false or missed:
            print(
                f"{name:<22} {len(mine):>7}  {_ratio(true, false):>9}  {_ratio(true, missed):>6}  {_seconds(mine):>7}"
            )
    true, false, missed = totals
    print(
        f"{'all':<22} {len(outcomes):>7}  {_ratio(true, false):>9}  {_ratio(true, missed):>6}  {_seconds(outcomes):>7}"
    )


def _print_kinds(outcomes: list[Outcome]) -> None:
    """Print how many scripts of each class were judged rightly, and the time that they took."""
    print(f"\n{'class':<22} scripts  judged rightly  seconds")
    for kind in KINDS:
        mine = [outcome for outcome in outcomes if outcome.example.kind == kind]
        print(f"{kind:<22} {len(mine):>7}  {sum(each.is_right for each in mine):>14}  {_seconds(mine):>7}")


def _seconds(outcomes: list[Outcome]) -> str:
    return f"{sum(outcome.seconds for outcome in outcomes):.0f}"


def _ratio(hits: int, others: int) -> str:
    return f"{hits / (hits + others):.2f}" if hits + others else "–"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("what", nargs="*", metavar="ID|SCRIPT", help="checks, or scripts (default: all)")
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N", help="scripts at a time"
    )
    parser.add_argument("--quick", action="store_true", help="make the second run only if a script is about it")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="skip what FILE lists as right, and add to it")
    parser.add_argument("--gpus", default="", metavar="WHAT", help="GPUs to run on: real ones (all, 0) or emulated")
    parser.add_argument("--options", default="", metavar="OPTIONS", help="more options for `composesim check`")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show the findings on right scripts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
