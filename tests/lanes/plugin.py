"""Which tests does this lane run, and what came of each? A plugin of pytest: lanes that share a folder share out the tests.

Every lane collects all tests. Before it runs the tests of a module it claims the module by making a file that must not be
there yet, so each module runs in one lane, with its fixtures, and no list of durations has to balance them. Its tests with
containers are a module of their own: one lane at a time runs such tests, and must not be held up by others. A module whose
tests need something that is still being made beside the lanes (beside.py) is left until it is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.lanes.beside import Need
from tests.lanes.results import file_of

LONGEST = "tests/zoo/test_zoo.py"  # minutes: begun last, it would keep one lane busy when the others are done


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The tests of one file that start containers, or those that do not."""

    path: str
    has_docker: bool
    tests: tuple[pytest.Item, ...]

    @property
    def order(self) -> tuple[bool, bool, int]:
        """Containers first, which one lane at a time may have; then the longest, by how many of the tests start a cluster."""
        real = sum(any(test.get_closest_marker(name) for name in ("train", "docker")) for test in self.tests)
        return not self.has_docker, self.path != LONGEST, -real


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", metavar="NAME", required=True, help="this lane's name")
    parser.addoption("--lanes-folder", metavar="FOLDER", required=True, type=Path, help="what all lanes share")
    parser.addoption("--lanes-need", metavar="MARKER=FILE", action="append", default=[], type=Need.of)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Lane(*map(config.getoption, ("--lanes-folder", "--lane", "--lanes-need"))))


class Lane:
    """One of the pytest processes: runs what it claims, and writes `NAME.jsonl`."""

    def __init__(self, folder: Path, name: str, needs: list[Need]) -> None:
        self._folder, self._needs = folder, needs
        self._results = (folder / f"{name}.jsonl").open("a", buffering=1)
        self._containers = os.open(folder / "containers.lock", os.O_CREAT | os.O_RDWR)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """In place of pytest's own loop, which goes on to say what it says of files that cannot be imported."""
        if session.testsfailed:
            return None
        modules = [
            Module(path=path, has_docker=has_docker, tests=tuple(tests))
            for (path, has_docker), tests in groupby(sorted(session.items, key=_place), _place)
        ]
        waiting = sorted(modules, key=lambda module: module.order)
        while module := self._next(waiting):
            waiting.remove(module)
            if self._claim(module):
                _run(session, module)
            fcntl.flock(self._containers, fcntl.LOCK_UN)
        return True

    def _next(self, waiting: list[Module]) -> Module | None:
        """The first that can run now, or once what it needs is there; None where another lane will come to all of them."""
        while True:
            needs = {module: need for module in waiting for need in self._needs if any(map(need.is_of, module.tests))}
            early = [module for module, need in needs.items() if not need.has_ended()]
            free = [module for module in waiting if module not in early]
            # Where all that is free has containers, the lane that runs such a module now will come to the others.
            found = next((each for each in free if not each.has_docker or self._take_containers()), None)
            if found or not early:
                return found
            needs[early[0]].has_ended(wait=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """What could not be made fails each test that needs it."""
        for need in self._needs:
            if need.is_of(item) and need.problem:
                pytest.fail(need.problem, pytrace=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line a phase of a test."""
        words = [report.longreprtext, *(f"--- {title}\n{text}" for title, text in report.sections)]
        self._write(
            test=report.nodeid,
            phase=report.when,
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            text="\n".join(words) if report.failed else "",
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """The last line: this lane came to its end."""
        self._write(collected=session.testscollected, status=int(exitstatus))

    def _write(self, **values: Any) -> None:
        self._results.write(json.dumps(values) + "\n")

    def _claim(self, module: Module) -> bool:
        claims = self._folder / "claims"
        claims.mkdir(exist_ok=True)
        try:
            (claims / f"{module.path.replace('/', '.')}{'.docker' if module.has_docker else ''}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _take_containers(self) -> bool:
        """Whether this lane may start containers: one at a time does, as they wait for one daemon, and choose free subnets."""
        try:
            fcntl.flock(self._containers, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _place(test: pytest.Item) -> tuple[str, bool]:
    """Its file, and whether it starts containers."""
    return file_of(test.nodeid), test.get_closest_marker("docker") is not None


def _run(session: pytest.Session, module: Module) -> None:
    """As pytest does it; nothing of a module is kept for the next one."""
    for test, following in zip(module.tests, [*module.tests[1:], None], strict=True):
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
