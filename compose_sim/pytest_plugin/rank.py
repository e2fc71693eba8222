"""Run pytest in a rank: receive the tests to run one by one, and send back the reports.

    rank.py FOLDER    FOLDER holds `session.json` (what to collect, and how), and the pipes `commands.RANK` and `reports.RANK`,
                      which carry one JSON object per line

It runs as a file, with pytest and torch but without composesim. The session ends with the commands: if the main process
ends for any reason, the kernel closes the pipe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import json
import os
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from compose_sim.pytest_plugin.marks import ClusterShape, mark_of

_STACKS_BEFORE_S = 2.0  # stacks are written this long before the main process gives up the test


class RankPlugin:
    """The plugin of pytest in a rank."""

    def __init__(self, folder: Path, session: dict[str, Any]) -> None:
        self._rank = int(os.environ["RANK"])
        self._session = session
        # The main process has opened both already, so neither call waits.
        self._reports = (folder / f"reports.{self._rank}").open("w", encoding="utf-8", buffering=1)
        self._commands = (folder / f"commands.{self._rank}").open(encoding="utf-8")
        self._stacks = (folder / f"stacks.{self._rank}").open("w", encoding="utf-8")
        self._number = 0
        self._command: dict[str, Any] = {}
        self._expected: str | None = None
        self._config: pytest.Config | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """Take over the options of the main process before any plugin reads them."""
        vars(config.option).update(self._session["options"])
        self._config = config
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that the main process names, one after another."""
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
        if self._expected not in (None, nodeid):  # fixtures were kept for another test
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
        """Create the process group before the fixtures of the test."""
        if self._command["init"]:
            _join_group(self._command["backend"], self._number)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report at once: if another rank waits for this one, nothing may follow."""
        assert self._config is not None
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send(report=data)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the error of a file that cannot be imported: it explains why the file's tests are missing."""
        if report.failed:
            self._session["errors"] = self._session.get("errors", "") + report.longreprtext + "\n"

    def _send(self, **what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the main process has ended, and so have the commands
            self._reports.write(json.dumps(what, default=str) + "\n")


def _join_group(backend: str, number: int) -> None:
    """Create the process group, unless an earlier test left one. Store keys are new, since a destroyed group leaves its keys."""
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
    """Run one pytest session, which ends with the commands of the main process."""
    session = json.loads((folder / "session.json").read_text(encoding="utf-8"))
    # Import from the same folders as the main process, not from this file's folder, which Python put first.
    sys.path[:1] = [entry for entry in session["path"] if entry not in sys.path]
    os.environ.pop("PYTEST_ADDOPTS", None)  # the session has its options
    code = pytest.main(session["arguments"], plugins=[RankPlugin(folder, session)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(code)  # pytest could not start; the log says why


if __name__ == "__main__":
    main(Path(os.environ["COMPOSESIM_SHARED"], sys.argv[1]))


# Plugins that print, write a single file, or measure the main process.
_NOT_IN_RANKS = ("terminal", "cacheprovider", "junitxml", "pytest_cov", "_cov", "html", "json-report", "metadata")
# Options that select tests, stop early, distribute tests or open a prompt: only the main process acts on them.
_DEFAULTS: dict[str, Any] = {
    **{"file_or_dir": [], "keyword": "", "markexpr": "", "deselect": None, "collectonly": False, "maxfail": 0},
    **{"lf": False, "failedfirst": False, "newfirst": False, "stepwise": False, "stepwise_skip": False},
    **{"usepdb": False, "trace": False, "log_file": None, "xmlpath": None, "basetemp": None, "pastebin": None},
    **{"numprocesses": None, "maxprocesses": None, "dist": "no", "distload": False, "tx": [], "looponfail": False},
}


def arguments_of(config: pytest.Config, shape: ClusterShape, items: Iterable[pytest.Item]) -> list[str]:
    """Return the command line that makes a rank collect the files with tests of this shape."""
    files = dict.fromkeys(str(item.path) for item in items if (mark := mark_of(item)) and mark.shape == shape)
    arguments = ["--rootdir", str(config.rootpath), *(("-c", str(config.inipath)) if config.inipath else ())]
    arguments += ["--import-mode", config.getoption("importmode"), "-o", "addopts="]
    for override in config.getoption("override_ini") or ():
        arguments += ["-o", override]
    if config.getoption("confcutdir"):
        arguments += ["--confcutdir", str(config.getoption("confcutdir"))]
    for plugin in [*config.getoption("plugins"), *(f"no:{name}" for name in _NOT_IN_RANKS)]:
        arguments += ["-p", plugin]
    return [*arguments, "--", *files]


def options_of(config: pytest.Config) -> dict[str, Any]:
    """Return the options of the main process that JSON can hold, with defaults for those that ranks must not act on."""
    options = {name: value for name, value in vars(config.option).items() if _is_json(value)}
    own = {name: value for name, value in _DEFAULTS.items() if hasattr(config.option, name)}
    left = ("plugins", "override_ini", "inifilename", "rootdir", "confcutdir", "importmode")
    return {name: value for name, value in {**options, **own}.items() if name not in left}


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
