"""What came of the tests, by all that the lanes wrote? Pure: lines in, words out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

TRIED_AGAIN = 5  # failed tests of one lane; where more fail something is broken, and no bad luck


@dataclass
class Lane:
    """What one lane has written so far."""

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)  # by test: passed, failed or skipped
    seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # of those that failed
    collected: int | None = None  # None: it has not come to its end
    status: int | None = None  # pytest's exit code

    def read(self, lines: Iterable[str]) -> None:
        """What the plugin wrote: one phase of a test a line; a test fails in any of its phases."""
        for line in lines:
            told = json.loads(line)
            if "test" not in told:
                self.collected, self.status = told["collected"], told["status"]
                continue
            test, outcome = told["test"], told["outcome"]
            before = self.outcomes.get(test, "passed")
            self.outcomes[test] = before if before != "passed" else outcome
            self.seconds[test] = self.seconds.get(test, 0.0) + told["seconds"]
            if told["text"]:
                self.texts[test] = self.texts.get(test, "") + f"--- {told['phase']}\n{told['text']}\n"

    @property
    def failed(self) -> list[str]:
        """The tests that failed."""
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]

    @property
    def again(self) -> list[str]:
        """Those of them that are worth another try."""
        return self.failed if len(self.failed) <= TRIED_AGAIN else []

    @property
    def problem(self) -> str:
        """Why its results are worth nothing; nothing where they are whole. pytest ends with 5 where it ran no test."""
        if self.status is None:
            return f"lane {self.name} ended without a word on what it had still to do"
        return "" if self.status in (0, 1, 5) else f"lane {self.name} was broken off: pytest's exit code {self.status}"


def problems(lanes: list[Lane]) -> list[str]:
    """Why the lanes together say nothing of all tests: one was broken off, or a test ran in none of them, or in two."""
    found = [lane.problem for lane in lanes if lane.problem]
    collected = {lane.collected for lane in lanes}
    ran = sum(len(lane.outcomes) for lane in lanes)
    if not found and collected != {ran}:
        found.append(
            f"the lanes found {' and '.join(str(count) for count in sorted(collected, key=str))} tests, and ran {ran}"
        )
    return found if found or ran else ["no test was run"]


def by_module(lane: Lane, tests: Iterable[str]) -> str:
    """`two    34.1 s   26 passed  tests/node/agent/test_cluster.py`: one line for the tests of one file."""
    chosen = list(tests)
    outcomes = [lane.outcomes[test] for test in chosen]
    words = ", ".join(f"{outcomes.count(word)} {word}" for word in ("failed", "passed", "skipped") if word in outcomes)
    seconds = sum(lane.seconds[test] for test in chosen)
    return f"{lane.name:<6} {seconds:6.1f} s  {words:<12} {file_of(chosen[0])}"


def file_of(test: str) -> str:
    """The file that a test stands in, by its id."""
    return test.partition("::")[0]


def closing_line(lanes: list[Lane], mended: set[str]) -> str:
    """`1500 passed, 0 failed, 2 skipped`, alone on its line, for whoever reads the end; `mended` failed first and passed alone."""
    outcomes = ["passed" if test in mended else word for lane in lanes for test, word in lane.outcomes.items()]
    return ", ".join(f"{outcomes.count(word)} {word}" for word in ("passed", "failed", "skipped"))
