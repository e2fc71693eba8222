"""Run one node of a run: read the environment, start the agent, and report how it ended.

Arguments of the role `agent`: --launcher warm|torchrun|env|command|paddle|hosted [--master-address HOST] [--module] -- SCRIPT ARGS...
"""

from __future__ import annotations

import argparse
import os
import platform
import select
import selectors
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Callable

from ..shared import emulation
from ..shared.authentication import MissingSecretError, read_secret
from ..shared.event_log import EventLog
from ..shared.rank_logs import RankLogs
from ..shared.regular_files import open_to_append
from .agent import Agent, Node
from .gpu_proof import GpuProof
from .launchers import LAUNCHERS, Launch

_FLUSH_SECONDS = 5.0


class Signals:
    """SIGTERM and SIGINT, as a file descriptor to wait for."""

    def __init__(self) -> None:
        """Install handlers, so that neither ends this process."""
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._read

    def wait(self, seconds: float) -> bool:
        """Wait for a signal, and return whether one has arrived."""
        return bool(select.select([self._read], [], [], seconds)[0])

    def received(self) -> bytes:
        """Return the numbers of the signals that have arrived."""
        try:
            return os.read(self._read, 64)
        except BlockingIOError:
            return b""


def main(arguments: list[str]) -> int:
    """Run one node, and return the exit code."""
    options = _options(arguments)
    environment = os.environ
    events = EventLog.from_environment(environment)
    log = events.folder / "logs" / f"{events.node}.log"
    launch = Launch(
        launcher=options.launcher,
        program=(*(["-m"] if options.module else []), options.script, *options.arguments),
        run=events.run,
        nproc=int(environment.get("COMPOSESIM_NPROC", "1")),
        master_address=options.master_address,
    )
    events.emit(
        "node-started",
        pid=os.getpid(),
        hostname=socket.gethostname(),
        launcher=launch.launcher,
        python=platform.python_version(),
        executable=sys.executable,
    )
    if emulation.is_on():
        count = environment[emulation.VARIABLE]
        _print_and_log(log, f"CUDA {emulation.WORDS}: {count} device{'' if count == '1' else 's'}")
    exit_code = 1
    try:
        exit_code = _run_agent(launch, environment["COMPOSESIM_MASTER"], partial(_print_and_log, log))
    except MissingSecretError as error:
        _print_and_log(log, str(error))
    except BlockingIOError as error:  # in place of the starter; later ones are reported by the starter itself
        _print_and_log(log, f"{events.node} can start no more processes or threads: {error.strerror}")
    finally:
        events.emit("node-exited", exit_code=exit_code)
    return exit_code


def _run_agent(launch: Launch, master: str, log: Callable[[str], None]) -> int:
    environment, signals = os.environ, Signals()
    node = Node(
        master=master,
        secret=read_secret(environment),
        launch=launch,
        rank=int(environment["COMPOSESIM_NODE_RANK"]),
        events=EventLog.from_environment(environment),
        contained=_is_contained(),
        stall_seconds=float(environment.get("COMPOSESIM_STALL_SECONDS", "15")),
    )
    with selectors.DefaultSelector() as selector:
        echo = environment.get("COMPOSESIM_ECHO", "1") != "0"
        logs = RankLogs(node.events.folder / "logs", node.events.node, selector, echo=echo)
        agent = Agent(node, logs, selector, log)
        try:
            # While the starter imports torch. A node must not train on GPUs other than those planned for it.
            if problem := GpuProof(environment).finish(node.events, pause=signals.wait):
                log(problem)
                return 1
            selector.register(signals, selectors.EVENT_READ, lambda: agent.interrupt(signals.received()))
            return agent.run()
        finally:
            agent.close()
            logs.finish(_FLUSH_SECONDS)


def _is_contained() -> bool:
    """Return whether this node has a container to itself, so that every process in it is part of this node."""
    if os.environ.get("COMPOSESIM_ENGINE"):  # an engine without containers
        return False
    return os.getppid() <= 1  # the parent is the container's init, or there is none


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agent", description="One node of a composesim run.")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="warm")
    parser.add_argument("--master-address", help="the host on which rank 0 listens, instead of the master's store")
    parser.add_argument("--module", action="store_true", help="SCRIPT is a module's name, as after python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _print_and_log(log: Path, text: str) -> None:
    line = f"composesim {os.environ['COMPOSESIM_NODE']}: {text}\n"
    sys.stderr.write(line)
    try:
        with os.fdopen(open_to_append(log), "a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {line}")
    except OSError as error:  # a full disk must not end a training run
        print(f"composesim: cannot append the line above to {log}: {error.strerror}", file=sys.stderr)
