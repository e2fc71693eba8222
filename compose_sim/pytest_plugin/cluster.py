"""How does a test get to the ranks of a cluster, and their reports back? Through named pipes in the folder of a `composesim up`.

The run is a process of its own: it takes the signals that it needs, and its end is heard here as the end of the process.
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

from compose_sim.pytest_plugin import Shape, Wanted
from compose_sim.pytest_plugin.outcome import Heard, crashed, merged
from compose_sim.pytest_plugin.session import arguments_of, options_of

_START_S = 180.0  # an image may have to be built
_OTHERS_S = 1.0  # what the other ranks get to say the same, once one has failed: they may be waiting for it for good
_END_S = 20.0
_LIBC = ctypes.CDLL(None)  # loaded before any fork
_PR_SET_PDEATHSIG = 1
_RANK = Path(__file__).with_name("rank.py")


class Clusters:
    """All clusters of this pytest run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._live: dict[Shape, Cluster] = {}
        self._ending: list[Cluster] = []

    def run(self, item: pytest.Item, wanted: Wanted, *, following: pytest.Item | None) -> list[pytest.TestReport]:
        """The reports of a test: those of one rank, or of what became of the cluster."""
        begun = time.time()
        cluster = self._live.get(wanted.shape)
        if cluster is None or not cluster.is_running:
            cluster = self._live[wanted.shape] = Cluster(self._config, wanted.shape, item.session.items)
        heard = cluster.run(item.nodeid, following.nodeid if following else None, wanted)
        reports = merged(item, heard, begun=begun) if heard.why is None else crashed(item, heard, begun=begun)
        if not heard.is_whole or following is None:
            del self._live[wanted.shape]
            cluster.end(keep=heard.why is not None)
            self._ending.append(cluster)
        return reports

    def close(self) -> None:
        """End all clusters, and wait until nothing is left of them."""
        while self._live:
            _, cluster = self._live.popitem()
            self._ending.append(cluster)
            cluster.end()
        while self._ending:  # Ctrl-C while we wait leaves the others to the next call
            self._ending[-1].wait()
            self._ending.pop()


class Cluster:
    """One `composesim up`, whose ranks wait for tests."""

    def __init__(self, config: pytest.Config, shape: Shape, items: Iterable[pytest.Item]) -> None:
        self._shape = shape
        self.name = f"pytest-{secrets.token_hex(4)}"
        self._folder = Path(config.invocation_params.dir) / ".composesim" / "runs" / self.name
        self._pipes_folder = self._folder / "shared" / "pytest"
        self._pipes_folder.mkdir(parents=True)
        session = {"arguments": arguments_of(config, shape, items), "options": options_of(config), "path": sys.path}
        (self._pipes_folder / "session.json").write_text(json.dumps(session), encoding="utf-8")
        for rank in range(shape.world_size):
            (self._pipes_folder / f"stacks.{rank}").touch()
        self._commands = [self._pipe(f"commands.{rank}") for rank in range(shape.world_size)]
        self._reports = [self._pipe(f"reports.{rank}") for rank in range(shape.world_size)]
        self._hand_over()
        self._halves = [b""] * shape.world_size
        self._output = (self._folder / "up.json").open("w+", encoding="utf-8")
        self._process = self._start(config)
        self._ended = os.pidfd_open(self._process.pid)
        self._descriptors = [*self._reports, self._ended]
        self._backend: str | None = None
        self._keep = False
        self._is_at_test = False

    @property
    def is_running(self) -> bool:
        """Whether there is anybody to run a test."""
        return self._process.poll() is None

    def run(self, nodeid: str, following: str | None, wanted: Wanted) -> Heard:
        """Have every rank run this test; what was heard of them until all had, one had failed, or time was up."""
        heard = Heard(world_size=self._shape.world_size, run=self.name, folder=self._folder)
        if self._backend is None and not self._await_ready(heard):
            return heard
        command = {
            "item": nodeid,
            "next": following,
            "timeout": wanted.timeout_s,
            "backend": self._backend,
            "init": not self._shape.only,
        }
        self._is_at_test = True
        for pipe in self._commands:
            os.write(pipe, json.dumps(command).encode() + b"\n")
        deadline = time.monotonic() + wanted.timeout_s
        while not heard.is_complete:
            if heard.has_failed:
                deadline = min(deadline, time.monotonic() + _OTHERS_S)
            if not self._hear(heard, deadline):
                if not heard.has_failed:
                    heard.why = f"not done after {wanted.timeout_s:g} s"
                break
        self._note_end(heard)
        self._is_at_test = not heard.is_complete
        return heard

    def end(self, *, keep: bool = False) -> None:
        """Let the ranks end: in good order when the commands do, by force where one is at a test or not there. `keep` its folder."""
        self._keep = keep
        for pipe in self._commands:
            os.close(pipe)
        self._commands = []
        if (self._is_at_test or self._backend is None) and self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until nothing is left of it but, where something went wrong, its folder."""
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its supervisor removes what it ran
                self._process.wait()
        except KeyboardInterrupt:  # once more: by force
            self._process.send_signal(signal.SIGTERM)
            raise
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._output.close()
        if not self._keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, config: pytest.Config) -> subprocess.Popen[bytes]:
        shape = self._shape
        command = [sys.executable, "-m", "compose_sim", "up", "--json", "--name", self.name, "--launcher", "warm"]
        command += ["--nodes", str(shape.nodes), "--nproc-per-node", str(shape.nproc_per_node)]
        command += ["--engine", shape.engine, "--backend", shape.backend, "--max-restarts", "0"]
        command += ["--hang-timeout", "never"]  # between two tests nothing moves; each test has its own timeout
        return subprocess.Popen(
            [*command, str(_RANK), str(self._pipes_folder)],
            cwd=config.invocation_params.dir,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends this in good order
            preexec_fn=_end_with_parent,
        )

    def _pipe(self, name: str) -> int:
        """Open at both ends, so that no side waits for the other."""
        os.mkfifo(self._pipes_folder / name, 0o600)
        return os.open(self._pipes_folder / name, os.O_RDWR | os.O_NONBLOCK)

    def _hand_over(self) -> None:
        """Nodes run as the owner of the project where we are root."""
        if os.geteuid() == 0:
            owner = self._folder.parents[2].stat()
            for path in (self._folder / "shared", self._pipes_folder, *self._pipes_folder.iterdir()):
                os.chown(path, owner.st_uid, owner.st_gid)

    def _await_ready(self, heard: Heard) -> bool:
        deadline = time.monotonic() + _START_S
        while len(heard.ready) < self._shape.world_size:
            if not self._hear(heard, deadline):
                heard.why = f"the cluster was not there after {_START_S:g} s"
                self._note_end(heard)
                return False
        plan = json.loads((self._folder / "plan.json").read_text(encoding="utf-8"))
        self._backend = plan["backend"]
        return True

    def _hear(self, heard: Heard, deadline: float) -> bool:
        """Wait for news and note it; False when time is up or the run has ended."""
        ready, _, _ = select.select([*self._reports, self._ended], [], [], max(0.0, deadline - time.monotonic()))
        for rank, pipe in enumerate(self._reports):
            if pipe in ready:
                for line in self._lines(rank):
                    heard.note(rank, line)
        if self._ended in ready:
            return False
        return bool(ready)

    def _lines(self, rank: int) -> Iterator[Mapping[str, Any]]:
        *lines, self._halves[rank] = (self._halves[rank] + os.read(self._reports[rank], 1 << 20)).split(b"\n")
        return (json.loads(line) for line in lines)

    def _note_end(self, heard: Heard) -> None:
        """Why the run ended, if it did: its report tells."""
        if select.select([self._ended], [], [], 0)[0]:
            self._process.wait()
            self._output.seek(0)
            heard.note_end(self._output.read())


def _end_with_parent() -> None:
    """In the child: SIGTERM, on which `up` removes its run, when pytest is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
