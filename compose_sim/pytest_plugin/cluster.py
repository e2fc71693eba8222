"""Send tests to the ranks of a cluster, and receive reports, through named pipes in the run's folder.

The run is a separate process: it handles signals, and the plugin notices when it ends, as with any process.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compose_sim.engine.run_folder.folder import runs_folder
from compose_sim.pytest_plugin.marks import ClusterShape, MarkArguments
from compose_sim.pytest_plugin.outcome import RankReports, diagnosis_of, now, reports_to_show
from compose_sim.pytest_plugin.rank import arguments_of, options_of

_START_S = 180.0  # an image may have to be built
_OTHERS_S = 1.0  # for the other ranks to fail too, once one has failed: they may be waiting for it forever
_END_S = 20.0
_LOOK_S = 1.0  # between two looks for a hang
_LIBC = ctypes.CDLL(None)  # loaded before any fork
_PR_SET_PDEATHSIG = 1
_RANK = Path(__file__).with_name("rank.py")


class RankClusters:
    """All clusters of this pytest run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._live: dict[ClusterShape, RankCluster] = {}
        self._ending: list[RankCluster] = []

    def run(self, item: pytest.Item, mark: MarkArguments, *, following: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test on the cluster for it, which starts if it does not run yet, and return the reports to show."""
        started = now()
        cluster = self._live.get(mark.shape)
        if cluster is None or not cluster.is_running:
            cluster = self._live[mark.shape] = RankCluster(self._config, mark.shape, item.session.items)
        received = cluster.run(item.nodeid, following.nodeid if following else None, mark)
        reports = reports_to_show(item, received, started=started)
        if not received.is_cluster_usable or following is None:
            del self._live[mark.shape]
            cluster.end(keep=received.problem is not None)
            self._ending.append(cluster)
        return reports

    def close(self) -> None:
        """End all clusters, and wait until they are removed."""
        while self._live:
            _, cluster = self._live.popitem()
            self._ending.append(cluster)
            cluster.end()
        while self._ending:  # if Ctrl-C interrupts this wait, the next call waits for the others
            self._ending[-1].wait()
            self._ending.pop()


class RankCluster:
    """One run, whose ranks wait for tests."""

    def __init__(self, config: pytest.Config, shape: ClusterShape, items: Iterable[pytest.Item]) -> None:
        self._shape = shape
        self.name = f"pytest-{secrets.token_hex(4)}"
        self._folder = runs_folder(Path(config.invocation_params.dir)) / self.name
        self._pipes_folder = self._folder / "shared" / "pytest"
        self._pipes_folder.mkdir(parents=True)
        session = {"arguments": arguments_of(config, shape, items), "options": options_of(config), "path": sys.path}
        (self._pipes_folder / "session.json").write_text(json.dumps(session), encoding="utf-8")
        for rank in range(shape.world_size):
            (self._pipes_folder / f"stacks.{rank}").touch()
        self._commands = [self._pipe(f"commands.{rank}") for rank in range(shape.world_size)]
        self._reports = [self._pipe(f"reports.{rank}") for rank in range(shape.world_size)]
        self._chown()
        self._partial_lines = [b""] * shape.world_size
        self._output = (self._folder / "output.json").open("w+", encoding="utf-8")
        self._process = self._start(config)
        self._ended = os.pidfd_open(self._process.pid)
        self._descriptors = [*self._reports, self._ended]
        self._backend: str | None = None
        self._keep = False
        self._is_testing = False

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self._process.poll() is None

    def run(self, nodeid: str, following: str | None, mark: MarkArguments) -> RankReports:
        """Run a test on every rank, and return what they reported until all have finished, one has failed, or time is up."""
        received = RankReports(world_size=self._shape.world_size, run=self.name, folder=self._folder)
        if self._backend is None and not self._await_ready(received):
            return received
        command = {
            "item": nodeid,
            "next": following,
            "timeout": mark.timeout_s,
            "backend": self._backend,
            "init": not self._shape.only,
        }
        self._is_testing = True
        for pipe in self._commands:
            os.write(pipe, json.dumps(command).encode() + b"\n")
        began, deadline = now(), time.monotonic() + mark.timeout_s
        while not received.is_complete:
            if received.has_failed:
                deadline = min(deadline, time.monotonic() + _OTHERS_S)
            if self._receive(received, min(deadline, time.monotonic() + _LOOK_S)):
                continue
            is_over = time.monotonic() >= deadline or self._has_ended()
            is_hung = not is_over and bool(diagnosis_of(self._folder, since=began, only_final=True))
            if is_over or is_hung:
                if not received.has_failed:
                    received.problem = "hung" if is_hung else f"not finished after {mark.timeout_s:g} s"
                break
        self._note_end(received)
        self._is_testing = not received.is_complete
        return received

    def end(self, *, keep: bool = False) -> None:
        """Let the ranks exit; interrupt the run if they cannot. `keep` decides whether the folder stays."""
        self._keep = keep
        for pipe in self._commands:  # a rank exits at the end of the commands
            os.close(pipe)
        self._commands = []
        if (self._is_testing or self._backend is None) and self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until the run is removed; the folder stays if something went wrong."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the supervisor removes the nodes
                self._process.wait()
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGTERM)
            raise
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._output.close()
        if not self._keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, config: pytest.Config) -> subprocess.Popen[bytes]:
        shape = self._shape
        fields = {
            **{"name": self.name, "engine": shape.engine, "backend": shape.backend, "launcher": "warm"},
            **{"nodes": shape.nodes, "nproc_per_node": shape.nproc_per_node, "max_restarts": 0},
            "hang_timeout": "never",  # between two tests nothing moves; each test has a timeout
            **{"script": str(_RANK), "args": [self._pipes_folder.name]},
        }
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "compose_sim.app.session_process", json.dumps(fields)],
            cwd=config.invocation_params.dir,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends the run
            preexec_fn=_end_with_parent,
        )

    def _pipe(self, name: str) -> int:
        """Open both ends of a new pipe, so that neither side waits for the other to open it."""
        os.mkfifo(self._pipes_folder / name, 0o600)
        return os.open(self._pipes_folder / name, os.O_RDWR | os.O_NONBLOCK)

    def _chown(self) -> None:
        """Give the pipes to the owner of the project, as whom nodes in containers run if we are root."""
        if os.geteuid() == 0:
            owner = self._folder.parents[2].stat()
            for path in (self._folder / "shared", self._pipes_folder, *self._pipes_folder.iterdir()):
                os.chown(path, owner.st_uid, owner.st_gid)

    def _await_ready(self, received: RankReports) -> bool:
        deadline = time.monotonic() + _START_S
        while len(received.ready) < self._shape.world_size:
            if not self._receive(received, deadline):
                received.problem = f"the cluster did not start within {_START_S:g} s"
                self._note_end(received)
                return False
        plan = json.loads((self._folder / "plan.json").read_text(encoding="utf-8"))
        self._backend = plan["backend"]
        return True

    def _receive(self, received: RankReports, deadline: float) -> bool:
        """Wait for lines of ranks and note them; return False if time is up or the run has ended."""
        ready, _, _ = select.select([*self._reports, self._ended], [], [], max(0.0, deadline - time.monotonic()))
        for rank, pipe in enumerate(self._reports):
            if pipe in ready:
                for line in self._lines(rank):
                    received.note(rank, line)
        return bool(ready) and self._ended not in ready

    def _lines(self, rank: int) -> Iterator[Mapping[str, Any]]:
        data = self._partial_lines[rank] + os.read(self._reports[rank], 1 << 20)
        *lines, self._partial_lines[rank] = data.split(b"\n")
        return (json.loads(line) for line in lines)

    def _has_ended(self) -> bool:
        return bool(select.select([self._ended], [], [], 0)[0])

    def _note_end(self, received: RankReports) -> None:
        """If the run has ended, note why, from its report."""
        if self._has_ended():
            self._process.wait()
            self._output.seek(0)
            received.note_end(self._output.read())


def _end_with_parent() -> None:
    """Let the kernel send this child SIGTERM if pytest is killed; the child then removes the run."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
