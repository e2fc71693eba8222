"""Fork the ranks of a node. For the warm launcher, import torch once first, so that each rank has it already.

Arguments of the role `fork-server`: AGENT_PID CHANNEL_DESCRIPTOR warm|env|command -- [-m] SCRIPT ARGS... or COMMAND...

This process never uses CUDA, starts no thread, and runs one short loop. A forked rank returns from that loop to `main`,
and runs the user's script from there.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

from ..rank import instrument, script_runner
from ..rank.emulate import failures
from ..shared import process, starter_protocol
from ..shared.shadowing import shadowed_modules
from . import exec_command, quick_exit
from .import_ahead import import_ahead

_COMPILER = re.compile(rb"torch\.compile|\bmodel\.compile|_dynamo|\bpipelining\b")


def import_torch(program: list[str], folder: str = ".") -> None:
    """Import torch, and everything that takes long to import in `program`, which will be run in `folder`."""
    modules = ["torch.distributed", "torch.nn.parallel"]
    if _compiles(Path(folder, program[0])):
        modules.append("torch._dynamo")  # else a rank imports it on first use: rank/torch_hooks/lazy_compiler.py
    if not Path("/dev/nvidiactl").exists():  # ranks will probably emulate a GPU; importing this sets up nothing
        modules.append(f"{__package__.rpartition('.')[0]}.rank.emulate.emulator")
    with quick_exit.prepared():
        import_ahead(*modules)


def _compiles(script: Path) -> bool:
    try:
        return _COMPILER.search(script.read_bytes()) is not None
    except OSError:  # a module, or the rank will report it
        return False


def wake_on_child_exit() -> tuple[int, int]:
    """Return both ends of a pipe, the first of which can be read once a child has ended."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read, write


class ForkServer:
    """Forks ranks when the agent requests them, and reports how they end."""

    def __init__(self, link: socket.socket) -> None:
        """Talk to the agent over `link`."""
        self._link = link
        self._local_ranks: dict[int, int] = {}  # by process

    def serve(self) -> dict[str, str] | None:
        """Serve until the agent disconnects, and return None; return the variables of the rank in a forked process."""
        if "torch" in sys.modules:
            failures.require()
        self._wakeup = wake_on_child_exit()
        signal.signal(signal.SIGTERM, lambda *_: None)  # which a cluster may send to all processes of a node
        with contextlib.suppress(ConnectionError):  # the agent has disconnected, as the loop will notice
            starter_protocol.send(self._link, {"ready": True})
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(self._wakeup[0], selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select()}
                if self._wakeup[0] in ready:
                    os.read(self._wakeup[0], 512)
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
        server = os.getpid()
        for variables, output in zip(ranks, outputs):
            local_rank = int(variables["LOCAL_RANK"])
            try:
                pid = os.fork()
            except BlockingIOError:
                starter_protocol.send(self._link, {"ended": local_rank, "status": 1, "no_process_ids": True})
                continue
            if pid == 0:
                become_rank(server, output, (*outputs, *self._wakeup))
                self._link.close()
                return variables
            self._local_ranks[pid] = local_rank
            starter_protocol.send(self._link, {"started": local_rank, "pid": pid})
        for output in outputs:
            os.close(output)
        return None

    def _reap(self) -> None:
        while self._local_ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            local_rank = self._local_ranks.pop(pid, None)
            if local_rank is not None:
                report = {"ended": local_rank, "status": os.waitstatus_to_exitcode(status)}
                starter_protocol.send(self._link, report)


def become_rank(parent: int, output: int, descriptors: Iterable[int]) -> None:
    """Give a forked process a session, streams and signal handlers like those of a new one, and close our descriptors."""
    os.setsid()
    process.die_with(parent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in descriptors:
        os.close(descriptor)
    _reseed()


def _reseed() -> None:
    """Reseed the generators that were seeded when the parent imported them, or unseeded ranks would draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def run_rank(variables: dict[str, str] | None, launcher: str, program: list[str]) -> None:
    """Run the rank with these variables in this process; without any, exit, because this is the server itself."""
    if variables is None:
        os._exit(0)  # nothing is left to do, and torch takes time to exit
    os.environ.update(variables)
    if launcher == "command":
        exec_command.execute(program)
    user_program = script_runner.UserProgram.from_arguments(program)
    # Forked ranks share the seed of Python's hashes, and have modules that those of the project should have shadowed.
    if launcher == "env" or "COMPOSESIM_OWN_HASHES" in os.environ or shadowed_modules(user_program.folder):
        user_program.execute()
    script_runner.run(user_program)


def main(arguments: list[str]) -> None:
    """Serve the agent; in a process forked for a rank, run the rank."""
    agent, descriptor, launcher, _, *program = arguments
    process.die_with(int(agent))
    if launcher == "warm":
        instrument.install()
        import_torch(program)
    run_rank(ForkServer(socket.socket(fileno=int(descriptor))).serve(), launcher, program)
