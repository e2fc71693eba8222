"""How does horovodrun start the ranks of a run? By ssh, as on real hosts: this driver shows it the way to each node, and starts it.

horovod_driver.py --slots 1,1 --ranks 2 --least 0.28 [--elastic 2:4] [--mpi] [--timeline] [--fusion-threshold BYTES] [--cycle-time MS]
                  -- [-m] SCRIPT ARGS...

It is the real horovodrun, as a person would type it. It starts at once, and its sessions wait for nodes that are still on their way.
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

from ...master.driver_api import MISSING, NOT_READY, TOO_OLD, UNREACHABLE, Link, fail
from ...shared import process, roles
from ...shared.installed import is_older, version_of
from ...shared.passthrough_args import add_words
from . import ssh
from .hosts import Listening, Told, Ways

_LOOK_SECONDS, _REST_SECONDS = 0.05, 1.0
_GRACE_SECONDS = 3.0
# How long all ranks must have been there, and may be awaited, before a host is added.
_SETTLED_SECONDS, _PATIENCE_SECONDS = 1.0, 60.0
_GLOO_SECONDS = "120"  # Horovod's own is 30
# What horovodrun shows to each rank on a command line: only what may be seen there.
_SHOWN = re.compile(r"HOME|USER|LOGNAME|LANG|LC_\w+|TMPDIR|PYTHONPATH|(HOROVOD|NCCL|UCX|OMPI|GLOO)_\w+")
_IMAGE = "composesim image build --recipe horovod, or --image host where this machine has it"


def main(arguments: list[str]) -> None:
    """Drive one run; the exit code is horovodrun's."""
    options = _options(arguments)
    horovodrun = _find_horovodrun(options)
    link = Link()
    folder = Path(tempfile.mkdtemp(prefix="composesim-ssh-"))  # in memory: the private key is nowhere else
    run = Path(os.environ["COMPOSESIM_DIR"])
    ways = Ways(folder, Path(os.environ["COMPOSESIM_SHARED"]))
    try:
        nodes = {f"node-{number}": int(count) for number, count in enumerate(options.slots.split(","))}
        if not options.elastic:
            ways.close_gates(nodes)
        hosts = Hosts(folder, nodes)
        words = horovodrun_words(
            options, horovodrun, nodes=nodes, discovery=hosts.script, timeline=run / "logs" / "timeline.json"
        )
        print("$", " ".join(words), flush=True)
        started = subprocess.Popen(
            words,
            env=shown_environment(os.environ, programs=ways.programs, options=options),
            preexec_fn=partial(process.die_with, os.getpid()),
        )
        stops: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: stops.append(received))
        try:
            link.accept()
            following = _Following(started, link, ways, hosts, Listening(run / "events", Told()), options)
            while started.poll() is None and not stops:
                following.go_on()
        finally:
            ways.close()  # the sessions end with their connections, and what waits at a gate goes on
            code = _end(started)
        sys.exit(code if code >= 0 else 128 - code)
    finally:
        ways.close()
        shutil.rmtree(folder, ignore_errors=True)


def _end(started: subprocess.Popen[bytes]) -> int:
    """Its exit code, or minus the signal that ended it; it is asked to end where it has not."""
    if started.poll() is None:
        started.terminate()
    try:
        return started.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        return started.wait()


class Hosts:
    """
    What a host-discovery script says: the nodes that can be reached, each with its slots.

    A node that has gone is out at once. One that has come is in when the ranks of all others have joined, or do not in time: news of a
    host that reaches Horovod while it begins anew is lost, and the host is never used.
    """

    def __init__(self, folder: Path, slots: Mapping[str, int]) -> None:
        """Nobody can be reached yet."""
        self._file, self.script, self._slots = folder / "hosts", folder / "bin" / "discover-hosts", slots
        self._unsettled_at = self._changed_at = 0.0  # on the monotonic clock
        self.listed: list[str] = []
        self._write()
        ssh.write_whole(self.script, f"#!/bin/sh\nexec cat {self._file}\n", mode=0o755)

    def update(self, nodes: Collection[str], told: Told, *, begun: bool, now: float) -> None:
        """These nodes can be reached now; until the ranks have `begun` all are taken in as they come."""
        if told.count(self.listed) < sum(self._slots[node] for node in self.listed):
            self._unsettled_at = now
        may_grow = (
            not begun or now - self._unsettled_at > _SETTLED_SECONDS or now - self._changed_at > _PATIENCE_SECONDS
        )
        listed = sorted(node for node in nodes if may_grow or node in self.listed)
        if listed != self.listed:
            self.listed, self._changed_at, self._unsettled_at = listed, now, now
            self._write()

    def _write(self) -> None:
        ssh.write_whole(self._file, "".join(f"{node}:{self._slots[node]}\n" for node in self.listed))


def horovodrun_words(
    options: argparse.Namespace, horovodrun: str, *, nodes: Mapping[str, int], discovery: Path, timeline: Path
) -> list[str]:
    """The command line; `nodes` are all that may take part, with their slots."""
    words = [
        horovodrun,
        "--mpi" if options.mpi else "--gloo",
        "-np",
        str(options.ranks),
        "--network-interfaces",
        "eth0",
    ]
    if options.elastic:
        words += ["--host-discovery-script", str(discovery), "--blacklist-cooldown-range", "1", "4"]
        for name, count in zip(("--min-np", "--max-np"), options.elastic.split(":")):
            words += [name, count]
    else:
        words += ["-H", ",".join(f"{node}:{slots}" for node, slots in nodes.items())]
    if options.timeline:
        # Without the cache each reduction is negotiated in full, which the timeline then shows: who was ready when.
        words += ["--timeline-filename", str(timeline), "--cache-capacity", "0"]
    if options.cycle_time is not None:
        words += ["--cycle-time-ms", f"{options.cycle_time:g}"]
    # -S: it imports nothing that is installed, and begins sooner.
    return [*words, *roles.command("ssh-rank", "--", *options.program, options=("-S",))]


class _Following:
    """While horovodrun runs: it is shown the nodes as they come and go, and composesim is told when all ranks have joined."""

    def __init__(
        self,
        started: subprocess.Popen[bytes],
        link: Link,
        ways: Ways,
        hosts: Hosts,
        events: Listening,
        options: argparse.Namespace,
    ) -> None:
        self._link, self._ways, self._hosts, self._events, self._options = link, ways, hosts, events, options
        self._is_ready = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._selector.register(os.pidfd_open(started.pid), selectors.EVENT_READ)

    def go_on(self) -> None:
        """Wait for what is next, not long, and do what follows from it."""
        is_settled = self._is_ready and set(self._ways.standing) == {each.node for each in self._link.nodes}
        self._selector.select(_REST_SECONDS if is_settled else _LOOK_SECONDS)
        self._link.hear(0)
        present = [each.node for each in self._link.nodes]
        self._events.look(present)
        for node, problem in self._ways.update(present, self._events.told, now=time.monotonic()).items():
            _tell_unreachable(node, problem, is_elastic=bool(self._options.elastic))
        told = self._events.told
        self._hosts.update(self._ways.standing, told, begun=self._is_ready, now=time.monotonic())
        ranks = self._options.ranks
        if not self._is_ready and told.count(present) >= ranks:
            self._is_ready = True
            over = "MPI" if self._options.mpi else "gloo"
            self._link.ready(words=f"{ranks} ranks on {len(present)} nodes have joined, over {over}")


def _tell_unreachable(node: str, problem: str, *, is_elastic: bool) -> None:
    message = f"{node} cannot be reached by ssh: {problem}"
    if not is_elastic:
        fail(UNREACHABLE, message, hint="composesim link test, which tries the way from each node to each other")
    print(f"composesim driver: {message}; the others go on without it", file=sys.stderr, flush=True)


def _find_horovodrun(options: argparse.Namespace) -> str:
    """The path of horovodrun; ends the driver where something that it needs is not in this image."""
    found = version_of("horovod")
    if not found:
        fail(MISSING, f"there is no horovod in this image ({sys.executable} has none)", hint=_IMAGE)
    if is_older(found, options.least):
        fail(TOO_OLD, f"horovod {found} is too old: {options.least} or newer is needed", hint=_IMAGE)
    lacking = ssh.missing() + [name for name in ("flock",) if not shutil.which(name)]
    if lacking:
        fail(MISSING, f"there is no {lacking[0]} in this image, by which nodes are reached", hint=_IMAGE)
    if options.mpi:
        _check_mpi()
    script = options.program[0] if options.program and options.program[0] != "-m" else None
    unreadable = next(
        (path for path in (".", script) if path and Path(path).exists() and not os.access(path, os.R_OK)), None
    )
    if unreadable:
        message = f"nodes run as user {os.getuid()} here, who may not read '{Path(unreadable).absolute()}'"
        fail(NOT_READY, message, hint=f"chmod -R o+rX {Path.cwd()}")
    beside = Path(sys.executable).with_name("horovodrun")
    horovodrun = str(beside) if beside.exists() else shutil.which("horovodrun")
    if horovodrun is None:
        fail(MISSING, f"horovod {found} is in this image, and its command horovodrun is not on the PATH", hint=_IMAGE)
    return horovodrun


def _check_mpi() -> None:
    library = next(
        (
            str(file.locate())
            for file in distribution("horovod").files or ()
            if "mpi_lib" in file.name and file.suffix == ".so"
        ),
        "",
    )
    if not library or b"libmpi.so" not in Path(library).read_bytes():
        hint = "leave --mpi out: gloo needs nothing; or build Horovod where mpicxx is: templates/image/build-horovod.sh"
        fail(MISSING, "this Horovod was built without MPI", hint=hint)
    if not shutil.which("mpirun"):
        fail(MISSING, "there is no mpirun in this image, which --mpi needs", hint="leave --mpi out: gloo needs nothing")


def shown_environment(ours: Mapping[str, str], *, programs: Path, options: argparse.Namespace) -> dict[str, str]:
    """What horovodrun starts with, which it shows to each rank on a command line."""
    environment = {name: value for name, value in ours.items() if _SHOWN.fullmatch(name)}
    environment["PATH"] = f"{programs}:{ours.get('PATH', os.defpath)}"
    environment["PYTHONUNBUFFERED"] = "1"
    environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # all nodes share this machine's cores, which mpirun cannot know
    if options.fusion_threshold is not None:
        environment["HOROVOD_FUSION_THRESHOLD"] = str(options.fusion_threshold)
    if not options.elastic:
        # Who is lost ends the run by another way then; and nodes that share a busy machine begin apart.
        environment.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", _GLOO_SECONDS)
    return environment


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="horovod-driver", description="The driver of a Horovod run.")
    parser.add_argument("--slots", required=True, help="ranks of each node that may take part, such as 1,1,2")
    parser.add_argument("--ranks", type=int, required=True, help="ranks to begin with")
    parser.add_argument("--least", required=True, help="the oldest Horovod that will do")
    parser.add_argument("--elastic", help="fewest and most ranks, such as 2:4")
    parser.add_argument("--mpi", action="store_true", help="MPI instead of gloo")
    parser.add_argument("--timeline", action="store_true", help="have Horovod write its timeline")
    parser.add_argument("--fusion-threshold", type=int, help="bytes of tensors that are reduced together")
    parser.add_argument("--cycle-time", type=float, help="milliseconds between two rounds of reductions")
    add_words(parser, "program", help="-- and what each rank runs")
    return parser.parse_args(arguments)
