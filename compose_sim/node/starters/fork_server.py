"""Who forks the ranks? This process: for the warm launcher it imports torch once, and each rank begins with torch already there.

It never touches CUDA, starts no thread, and stays in one short loop; a forked rank leaves that loop by returning from it, down
to the last lines of this file, and runs the person's script from there, with nothing of ours left on the stack to unwind.

    starter.py PARENT_PID CHANNEL_DESCRIPTOR warm|env|command -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from ..rank import instrument, script_runner
from ..shared import process, starter_protocol
from . import exec_command


def import_torch() -> None:
    """Import what a training script will ask for. Where torch is not there, or broken, the script's own import will say so."""
    # The collector finds nothing to free while modules load, and costs a fifth of their time.
    gc.disable()
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")  # a warning that the script would cause, it will not cause from here
        import torch._dynamo  # DistributedDataParallel's constructor imports it: 0.8 s in every rank otherwise
        import torch.distributed
        import torch.nn.parallel  # noqa: F401

        if not Path("/dev/nvidiactl").exists():  # then ranks most likely emulate one; nothing is set before they say so
            from ..rank.emulate import emulator  # noqa: F401
    gc.freeze()  # so that a rank's first collection does not touch, and thereby copy, all those pages
    gc.enable()


class Starter:
    """Forks ranks as the agent asks for them, and tells it how they end."""

    def __init__(self, link: socket.socket) -> None:
        """Speak with the agent over `link`."""
        self._link = link
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ranks: dict[int, int] = {}  # local rank of a process

    def serve(self) -> dict[str, str] | None:
        """Serve until the agent hangs up: None. In a forked rank: the variables it was given."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        with contextlib.suppress(ConnectionError):  # of an agent that has left we hear next
            starter_protocol.send(self._link, {"ready": True})
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(self._wakeup_read, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._wakeup_read in ready:
                    os.read(self._wakeup_read, 512)
                    self._reap()
                if self._link.fileno() in ready:
                    received = starter_protocol.receive(self._link)
                    if received is None:
                        return None
                    packet, outputs = received
                    variables = self._start(starter_protocol.ranks_of(packet), outputs)
                    if variables is not None:
                        return variables

    def _start(self, ranks: list[dict[str, str]], outputs: list[int]) -> dict[str, str] | None:
        starter = os.getpid()
        for variables, output in zip(ranks, outputs):
            pid = os.fork()
            if pid == 0:
                become_rank(starter, output, (*outputs, self._wakeup_read, self._wakeup_write))
                self._link.close()
                return variables
            local_rank = int(variables["LOCAL_RANK"])
            self._ranks[pid] = local_rank
            starter_protocol.send(self._link, {"started": local_rank, "pid": pid})
        for output in outputs:
            os.close(output)
        return None

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            local_rank = self._ranks.pop(pid, None)
            if local_rank is not None:
                starter_protocol.send(self._link, {"ended": local_rank, "status": exit_status(status)})


def become_rank(starter: int, output: int, ours: Iterable[int]) -> None:
    """Make a forked process what a new one would be: its own session and streams, default signals, nothing of ours (descriptors)."""
    os.setsid()
    process.die_with(starter)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in ours:
        os.close(descriptor)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:  # it was seeded once, on import: ranks that share a state would shuffle alike
        numpy_random.seed()


def exit_status(status: int) -> int:
    """What `wait` says as `subprocess` has it: -signal or exit code."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _begin(agent: str, descriptor: str, launcher: str) -> dict[str, str] | None:
    process.die_with(int(agent))
    if launcher == "warm":
        instrument.install()
        import_torch()
    return Starter(socket.socket(fileno=int(descriptor))).serve()


def main(arguments: list[str]) -> None:
    """Serve the agent; in a rank forked meanwhile: become it.

    Arguments: PARENT_PID CHANNEL_DESCRIPTOR warm|env|command -- PROGRAM.
    """
    agent, descriptor, launcher, _, *words = arguments
    variables = _begin(agent, descriptor, launcher)
    if variables is None:
        os._exit(0)  # nothing is left to do, and torch takes its time to leave
    os.environ.update(variables)
    if launcher == "command":
        exec_command.become(words)
    program = script_runner.Program.from_arguments(words)
    if launcher == "env":
        program.execute()
    script_runner.run(program)
