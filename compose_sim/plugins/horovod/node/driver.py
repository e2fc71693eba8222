"""Drive a Horovod run with the real horovodrun, which starts the ranks over ssh as it does on real hosts.

Arguments of the role `horovod-driver`: --slots 1,1 --ranks 2 --least 0.28 [--elastic 2:4] [--mpi] [--timeline]
[--fusion-threshold BYTES] [--cycle-time MS] -- [-m] SCRIPT ARGS...

horovodrun is started at once; the ssh sessions wait for nodes that are still starting.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

from ....node.master.driver_membership import (
    MISSING,
    NOT_READY,
    UNREACHABLE,
    MasterConnection,
    StartError,
    fail,
    require,
)
from ....node.shared import process, roles
from ....node.shared.roles import add_passthrough
from . import ssh
from .hosts import EventReader, NodeStates, SshConnections

_POLL_SECONDS, _SETTLED_POLL_SECONDS = 0.05, 1.0
_GRACE_SECONDS = 3.0
# A host is added when all ranks have been joined for this long, or have not joined within the patience.
_SETTLED_SECONDS, _PATIENCE_SECONDS = 1.0, 60.0
_GLOO_SECONDS = "120"  # Horovod's default is 30
# horovodrun passes these variables to each rank on a command line, so they must not be secret.
_PUBLIC = re.compile(r"HOME|USER|LOGNAME|LANG|LC_\w+|TMPDIR|PYTHONPATH|(HOROVOD|NCCL|UCX|OMPI|GLOO)_\w+")
_IMAGE = "composesim image build --recipe horovod, or --image host if this machine has it"


def main(arguments: list[str]) -> None:
    """Drive one run, and exit as horovodrun does."""
    options = _options(arguments)
    horovodrun = _find_horovodrun(options)
    master = MasterConnection()
    folder = Path(tempfile.mkdtemp(prefix="composesim-ssh-"))  # in memory: the only copy of the private key
    run = Path(os.environ["COMPOSESIM_DIR"])
    connections = SshConnections(folder, Path(os.environ["COMPOSESIM_SHARED"]))
    try:
        nodes = {f"node-{number}": int(count) for number, count in enumerate(options.slots.split(","))}
        if not options.elastic:
            connections.lock(nodes)
        hosts = Hosts(folder, nodes)
        timeline = run / "logs" / "timeline.json"
        command = horovodrun_command(options, horovodrun, nodes=nodes, discovery=hosts.script, timeline=timeline)
        print("$", " ".join(command), flush=True)
        child = subprocess.Popen(
            in_warm_python(command),
            env=public_environment(os.environ, programs=connections.programs, options=options),
            preexec_fn=partial(process.die_with, os.getpid()),
        )
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: signals.append(received))
        try:
            master.accept()
            follower = _Follower(child, master, connections, hosts, options)
            while child.poll() is None and not signals:
                follower.wait()
        finally:
            connections.close()  # which ends the sessions, and lets those continue that wait for a lock
            code = _end(child)
        sys.exit(process.shell_status(code))
    finally:
        connections.close()
        shutil.rmtree(folder, ignore_errors=True)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Terminate the child if it still runs, and return the exit code, or minus the signal that ended it."""
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def in_warm_python(command: list[str]) -> list[str]:
    """Return the command that runs horovodrun in a Python that has imported torch, unless it belongs to another Python."""
    if Path(command[0]).parent != Path(sys.executable).parent:
        return command
    module = os.environ.get("COMPOSESIM_IMPORT", "torch")  # not in the environment of horovodrun
    return roles.command("horovodrun", module, *command)


class Hosts:
    """
    The output of a host-discovery script: the nodes that can be reached, each with the number of slots.

    A node that has gone is removed at once. A node that has come is added when the ranks of all others have joined, or
    have not joined in time: while Horovod restarts, it loses the notice of a new host, and then never uses the host.
    """

    def __init__(self, folder: Path, slots: Mapping[str, int]) -> None:
        """List no node yet."""
        self._file, self.script, self._slots = folder / "hosts", folder / "bin" / "discover-hosts", slots
        self._unsettled_at = self._changed_at = 0.0  # on the monotonic clock
        self.listed: list[str] = []
        self._write()
        ssh.write_atomically(self.script, f"#!/bin/sh\nexec cat {self._file}\n", mode=0o755)

    def update(self, nodes: Collection[str], states: NodeStates, *, begun: bool, now: float) -> None:
        """Update the list from the nodes that can be reached; before the ranks have `begun`, add all of them at once."""
        if states.joined_ranks(self.listed) < sum(self._slots[node] for node in self.listed):
            self._unsettled_at = now
        is_settled = now - self._unsettled_at > _SETTLED_SECONDS
        may_grow = not begun or is_settled or now - self._changed_at > _PATIENCE_SECONDS
        listed = sorted(node for node in nodes if may_grow or node in self.listed)
        if listed != self.listed:
            self.listed, self._changed_at, self._unsettled_at = listed, now, now
            self._write()

    def _write(self) -> None:
        ssh.write_atomically(self._file, "".join(f"{node}:{self._slots[node]}\n" for node in self.listed))


def horovodrun_command(
    options: argparse.Namespace, horovodrun: str, *, nodes: Mapping[str, int], discovery: Path, timeline: Path
) -> list[str]:
    """Return horovodrun's command line; `nodes` are all that may take part, with their slots."""
    command = [
        horovodrun,
        "--mpi" if options.mpi else "--gloo",
        "-np",
        str(options.ranks),
        "--network-interfaces",
        "eth0",
    ]
    if options.elastic:
        command += ["--host-discovery-script", str(discovery), "--blacklist-cooldown-range", "1", "4"]
        for name, count in zip(("--min-np", "--max-np"), options.elastic.split(":")):
            command += [name, count]
    else:
        command += ["-H", ",".join(f"{node}:{slots}" for node, slots in nodes.items())]
    if options.timeline:
        # Without the cache, every reduction is negotiated in full, so the timeline shows when each rank was ready.
        command += ["--timeline-filename", str(timeline), "--cache-capacity", "0"]
    if options.cycle_time is not None:
        command += ["--cycle-time-ms", f"{options.cycle_time:g}"]
    # -S: it needs no installed package, and starts sooner without them.
    return [*command, *roles.command("ssh-rank", "--", *options.program, options=("-S",))]


class _Follower:
    """Reports nodes to horovodrun as they come and go, and reports to the master when all ranks have joined."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        master: MasterConnection,
        connections: SshConnections,
        hosts: Hosts,
        options: argparse.Namespace,
    ) -> None:
        self._master, self._connections, self._hosts, self._options = master, connections, hosts, options
        self._states = NodeStates()
        self._events = EventReader(Path(os.environ["COMPOSESIM_DIR"]), self._states)
        self._is_ready = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(master, selectors.EVENT_READ)
        self._selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ)

    def wait(self) -> None:
        """Wait a moment for a change, and handle it."""
        is_settled = self._is_ready and set(self._connections.open) == {each.node for each in self._master.nodes}
        self._selector.select(_SETTLED_POLL_SECONDS if is_settled else _POLL_SECONDS)
        self._master.update(0)
        present = [each.node for each in self._master.nodes]
        self._events.read(present)
        for node, problem in self._connections.update(present, self._states, now=time.monotonic()).items():
            _report_unreachable(node, problem, is_elastic=bool(self._options.elastic))
        self._hosts.update(self._connections.open, self._states, begun=self._is_ready, now=time.monotonic())
        ranks = self._options.ranks
        if not self._is_ready and self._states.joined_ranks(present) >= ranks:
            self._is_ready = True
            transport = "MPI" if self._options.mpi else "gloo"
            self._master.ready(words=f"{ranks} ranks on {len(present)} nodes have joined over {transport}")


def _report_unreachable(node: str, problem: str, *, is_elastic: bool) -> None:
    message = f"{node} cannot be reached by ssh: {problem}"
    if not is_elastic:
        fail(UNREACHABLE, message, hint="composesim link test, which tests the link between every two nodes")
    print(f"composesim driver: {message}; the run continues without it", file=sys.stderr, flush=True)


def _find_horovodrun(options: argparse.Namespace) -> str:
    """Return the path of horovodrun; end the driver if the image lacks something that it needs."""
    try:
        version = require("horovod", options.least, "horovod", hint=_IMAGE)
    except StartError as error:
        fail(error.code, str(error), error.hint)
    missing = ssh.missing() + [name for name in ("flock",) if not shutil.which(name)]
    if missing:
        fail(MISSING, f"{missing[0]}, which Horovod needs to reach nodes, is not installed in this image", hint=_IMAGE)
    if options.mpi:
        _check_mpi()
    script = options.program[0] if options.program and options.program[0] != "-m" else None
    paths = [Path(path) for path in (".", script) if path]
    unreadable = next((path for path in paths if path.exists() and not os.access(path, os.R_OK)), None)
    if unreadable:
        message = f"nodes run as user {os.getuid()}, who may not read '{unreadable.absolute()}'"
        fail(NOT_READY, message, hint=f"chmod -R o+rX {Path.cwd()}")
    beside = Path(sys.executable).with_name("horovodrun")
    horovodrun = str(beside) if beside.exists() else shutil.which("horovodrun")
    if horovodrun is None:
        fail(MISSING, f"horovod {version} is installed in this image, but horovodrun is not on the PATH", hint=_IMAGE)
    return horovodrun


def _check_mpi() -> None:
    hint = "composesim up without --mpi, which uses gloo"
    files = [file for file in distribution("horovod").files or () if "mpi_lib" in file.name and file.suffix == ".so"]
    if not files or b"libmpi.so" not in Path(str(files[0].locate())).read_bytes():
        build = "or build Horovod on a machine with mpicxx: templates/image/build-horovod.sh"
        fail(MISSING, "this Horovod was built without MPI", hint=f"{hint}; {build}")
    if not shutil.which("mpirun"):
        fail(MISSING, "mpirun, which --mpi needs, is not installed in this image", hint=hint)


def public_environment(ours: Mapping[str, str], *, programs: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of horovodrun, which passes it to each rank on a command line."""
    environment = {name: value for name, value in ours.items() if _PUBLIC.fullmatch(name)}
    environment["PATH"] = f"{programs}:{ours.get('PATH', os.defpath)}"
    environment["PYTHONUNBUFFERED"] = "1"
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # all nodes share this machine's cores, which mpirun cannot know
    if options.fusion_threshold is not None:
        environment["HOROVOD_FUSION_THRESHOLD"] = str(options.fusion_threshold)
    if not options.elastic:
        # A lost node ends the run in another way; and on a busy machine, nodes start far apart.
        environment.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", _GLOO_SECONDS)
    return environment


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="horovod-driver", description="The driver of a Horovod run.")
    parser.add_argument("--slots", required=True, help="ranks of each node that may take part, such as 1,1,2")
    parser.add_argument("--ranks", type=int, required=True, help="number of ranks to start with")
    parser.add_argument("--least", required=True, help="the oldest supported Horovod")
    parser.add_argument("--elastic", help="minimum and maximum number of ranks, such as 2:4")
    parser.add_argument("--mpi", action="store_true", help="MPI instead of gloo")
    parser.add_argument("--timeline", action="store_true", help="have Horovod write its timeline")
    parser.add_argument("--fusion-threshold", type=int, help="maximum bytes of tensors to reduce together")
    parser.add_argument("--cycle-time", type=float, help="milliseconds between two rounds of reductions")
    add_passthrough(parser, "program", help="-- and what each rank runs")
    return parser.parse_args(arguments)
