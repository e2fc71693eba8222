"""What does a rank do while tests run on its cluster? It runs pytest, is told which test comes next, and sends its reports.

    rank.py FOLDER    with `session.json`, what to collect and how; `commands.RANK` and `reports.RANK`, pipes with a JSON a line

It runs by its path, with pytest and torch but without composesim. The end of the commands is the end of the session; that of the
main process closes the pipe, so that nothing is left behind whatever happens.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_STACKS_BEFORE_S = 2.0  # so that they are written when the main process gives the test up


class Rank:
    """pytest's plugin inside a rank."""

    def __init__(self, folder: Path, session: dict[str, Any]) -> None:
        self._rank = int(os.environ["RANK"])
        self._session = session
        # The main process holds both open already: neither waits.
        self._reports = (folder / f"reports.{self._rank}").open("w", encoding="utf-8", buffering=1)
        self._commands = (folder / f"commands.{self._rank}").open(encoding="utf-8")
        self._stacks = (folder / f"stacks.{self._rank}").open("w", encoding="utf-8")
        self._number = 0
        self._command: dict[str, Any] = {}
        self._expected: str | None = None
        self._config: pytest.Config | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """The options are those of the main process, before any plugin acts upon them."""
        vars(config.option).update(self._session["options"])
        self._config = config
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what the main process asks for, one test after another."""
        items = {item.nodeid: item for item in session.items}
        self._send(ready=os.getpid())
        for line in self._commands:
            self._command = json.loads(line)
            self._number += 1
            self._run(session, items)
        _leave_group()
        return True

    def _run(self, session: pytest.Session, items: dict[str, pytest.Item]) -> None:
        nodeid, item = self._command["item"], items.get(self._command["item"])
        if item is None:
            self._send(missing=nodeid, errors=self._session.get("errors", ""))
            return
        if self._expected not in (None, nodeid):  # what was set up is for a test that does not come now
            session._setupstate.teardown_exact(None)
        self._expected = self._command["next"] if self._command["next"] in items else None
        faulthandler.dump_traceback_later(max(0.1, self._command["timeout"] - _STACKS_BEFORE_S), file=self._stacks)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=items.get(self._expected or ""))
        finally:
            faulthandler.cancel_dump_traceback_later()
        if not self._command["init"]:
            _leave_group()
        self._send(finished=nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """The process group is there before the test's fixtures are."""
        if self._command["init"]:
            _join_group(self._command["backend"], self._number)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """At once: when another rank waits for this one, nothing more may come."""
        assert self._config is not None
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send(report=data)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported here is the reason why its tests are missing."""
        if report.failed:
            self._session["errors"] = self._session.get("errors", "") + report.longreprtext + "\n"

    def _send(self, **what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the main process has ended: so does the stream of commands
            self._reports.write(json.dumps(what, default=str) + "\n")


def _join_group(backend: str, number: int) -> None:
    """Begin the process group, unless an earlier test left it; over keys of its own, since those of one that was destroyed stay."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    from torch import distributed

    if not distributed.is_available() or distributed.is_initialized():
        return
    rank, world_size, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    store = distributed.TCPStore(address, int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]  # torch exports it so
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    own = distributed.PrefixStore(f"composesim/test-{number}", store)  # type: ignore[attr-defined]  # as above
    distributed.init_process_group(backend, store=own, rank=rank, world_size=world_size)


def _leave_group() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def main(folder: Path) -> None:
    """One pytest session, which ends when the main process says no more."""
    session = json.loads((folder / "session.json").read_text(encoding="utf-8"))
    # This file's folder, which Python put first, is no place to import from; what the main process sees is.
    sys.path[:1] = [entry for entry in session["path"] if entry not in sys.path]
    os.environ.pop("PYTEST_ADDOPTS", None)  # its options have come with the session's
    code = pytest.main(session["arguments"], plugins=[Rank(folder, session)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(code)  # it could not begin: what it said is in the log


if __name__ == "__main__":
    main(Path(sys.argv[1]))
