"""Do all tests pass? `python -m tests.lanes -m EXPRESSION` runs them in lanes side by side; with arguments for pytest, in one.

A cluster's start is mostly waiting, so on two cores two lanes take little more than half the time of one. They also disturb
one another, as do others on a shared machine: a test may then wait longer than it has patience for, which says nothing of
the code. So the few tests of a lane that failed are run once more, alone, after the lanes. Both answers are printed, and only
what fails again fails. Where many fail at once that is no bad luck, and nothing is tried again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

from tests.lanes.beside import Beside
from tests.lanes.results import Lane, by_module, closing_line, file_of, problems

FOLDER = Path("build/tests")  # of each lane NAME.log, NAME.xml (JUnit) and NAME.jsonl
LANES = ("one", "two")
ALONE = "alone"
_LOOK_S = 0.5
_SILENCE_S = 1200.0  # no test takes so long, also where eight others share the machine


def main() -> int:
    """The exit code: 0 where every test passed, in its lane or alone."""
    # A shell's background job ignores SIGINT, and so would all that tests start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _options()
    if options.pytest:
        return _run_plain(options)
    shutil.rmtree(FOLDER, ignore_errors=True)
    beside = [Beside(*words, FOLDER) for words in options.beside]
    asked = ("-m", options.marked, *(f"--lanes-need={each.need}" for each in beside))
    running = [Running(name, FOLDER, asked) for name in LANES]
    while any([lane.goes_on() for lane in running]):  # a list: each of them is looked at
        for each in beside:
            each.look()
    for each in beside:
        each.look(wait=True)
    lanes = [lane.results for lane in running]
    again = [test for lane in lanes for test in lane.again]
    alone = _run_alone(again, asked)
    mended = {test for test in again if alone.outcomes.get(test) == "passed"}
    _tell_failures(lanes, alone, mended)
    wrong = [*(each.problem for each in beside if each.problem), *problems(lanes)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    _say_not_run(options.not_run)
    print(closing_line(lanes, mended), flush=True)
    return 1 if wrong or any(test not in mended for lane in lanes for test in lane.failed) else 0


def _run_plain(options: argparse.Namespace) -> int:
    """One pytest after what else is asked for: the exit code of the first that failed."""
    asked = [sys.executable, "-m", "pytest", "-m", options.marked, *options.pytest]
    commands = [*(shlex.split(command) for _, command in options.beside), asked]
    codes = [subprocess.run(command, check=False).returncode for command in commands]
    _say_not_run(options.not_run)
    return next((code for code in codes if code), 0)


class Running:
    """A lane's pytest, of which is told what it has done."""

    def __init__(self, name: str, folder: Path, asked: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.results = Lane(name)
        self._file = (folder / f"{name}.jsonl").open("a+")
        self._half_a_line = ""
        self._told: set[str] = set()
        self._heard_at = time.monotonic()
        lane = ("-p", "tests.lanes.plugin", "--lane", name, "--lanes-folder", str(folder.absolute()))
        # The cache of pytest holds what failed last: of two that write it at once neither is of use.
        argv = (sys.executable, "-m", "pytest", "-v", *lane, "-p", "no:cacheprovider")
        with (folder / f"{name}.log").open("w") as log:
            self._process = subprocess.Popen(
                [*argv, f"--junitxml={folder / name}.xml", *asked],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def goes_on(self) -> bool:
        """Wait a little, then tell of the files whose tests are done."""
        try:
            self._process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            self._tell()
            if time.monotonic() - self._heard_at > _SILENCE_S:
                self._process.kill()
            return True
        self._tell(is_over=True)
        return False

    def _tell(self, *, is_over: bool = False) -> None:
        text = self._file.read()
        if text:
            self._heard_at = time.monotonic()
        *lines, self._half_a_line = (self._half_a_line + text).split("\n")
        self.results.read(lines)
        files = [list(tests) for _, tests in groupby(self.results.outcomes, file_of)]
        for tests in files if is_over else files[:-1]:
            if self._told.isdisjoint(tests):
                print(by_module(self.results, tests), flush=True)
                self._told.update(tests)


def _run_alone(tests: list[str], asked: tuple[str, ...]) -> Lane:
    """What came of these when nothing else ran; in a folder of its own, where no lane has claimed their files."""
    if not tests:
        return Lane(ALONE)
    print(f"Once more, alone: {len(tests)} that failed", flush=True)
    running = Running(ALONE, FOLDER / ALONE, (*asked, *tests))
    while running.goes_on():
        pass
    return running.results


def _tell_failures(lanes: list[Lane], alone: Lane, mended: set[str]) -> None:
    for lane in lanes:
        for test in lane.failed:
            print(f"\n=== {test} failed in lane {lane.name}\n{lane.texts[test]}")
            if test in mended:
                print(f"=== {test} passed alone: it is taken as passed")
            elif test in alone.texts:
                print(f"=== {test} failed alone too\n{alone.texts[test]}")
        if lane.problem:
            log = (FOLDER / f"{lane.name}.log").read_text(errors="replace")
            print(f"\n=== The end of {FOLDER}/{lane.name}.log\n" + "\n".join(log.splitlines()[-60:]))


def _say_not_run(reasons: list[str]) -> None:
    if reasons:
        print("Not run:", *(f"  {reason}" for reason in reasons), sep="\n")


def _name_and_command(word: str) -> tuple[str, str]:
    name, _, command = word.partition("=")
    return name, command


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument(
        "-m", dest="marked", default="", metavar="EXPRESSION", help="which tests, in the words of pytest -m"
    )
    parser.add_argument(
        "--beside",
        type=_name_and_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="to be run as well; tests with the marker NAME wait for its end",
    )
    parser.add_argument("--not-run", action="append", default=[], metavar="WHY", help="to be said at the end")
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="behind --, for pytest")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
