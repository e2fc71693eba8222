"""Who starts ranks where another launcher says when, by ssh? This process: it runs sshd, and forks a rank for each session that asks.

Like the starter of the warm launcher it imports what ranks will need once, while the nodes still find each other.

    PARENT_PID CHANNEL_DESCRIPTOR hosted -- [-m] SCRIPT ARGS...
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

from ...rank import instrument, script_runner
from ...shared import process, starter_protocol
from ...shared.decisions import Act
from ...shared.event_log import EventLog
from ...starters.fork_server import become_rank, exit_status
from . import ssh
from .ssh_sessions import GRACE_SECONDS, Answer, Fork, Guests, Report, Stop

_NEVER = float("inf")


def start_server(folder: Path) -> subprocess.Popen[bytes]:
    """Run sshd with a host key of its own, made in `folder`, and tell its public half when sshd listens."""
    sshd = ssh.program("sshd")
    if sshd is None:
        sys.exit("composesim hosting: there is no sshd on this node. Debian and Ubuntu have it in openssh-server")
    public = ssh.make_key(folder / "host_key")
    settings = ssh.server_settings(
        host_key=folder / "host_key",
        authorized=ssh.authorized_keys(Path(os.environ["COMPOSESIM_SHARED"])),
        hosting=folder / "socket",
    )
    (folder / "sshd_config").write_text(settings)
    # Foreground, and its log on stderr: the first line says that it listens. What follows it is kept for nobody.
    server = subprocess.Popen(
        [sshd, "-D", "-e", "-f", str(folder / "sshd_config")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=partial(process.die_with, os.getpid()),
    )
    assert server.stderr is not None
    said = b""
    while b"listening" not in said:
        line = server.stderr.readline()
        if not line:
            sys.exit(f"composesim hosting: sshd ended: {said.decode(errors='replace').strip()}")
        said += line
    os.set_blocking(server.stderr.fileno(), False)
    EventLog.from_environment(os.environ).emit("ssh", port=ssh.PORT, host_key=public)
    return server


def import_framework(name: str) -> None:
    """Import a module that scripts of this recipe will ask for. Where it is not there, the script's own import will say so."""
    gc.disable()
    with warnings.catch_warnings(), contextlib.suppress(ImportError):
        warnings.simplefilter("ignore")
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


class Hosting:
    """The sockets and processes around the guests of a node."""

    def __init__(self, link: socket.socket, listener: socket.socket, server: subprocess.Popen[bytes]) -> None:
        """Speak with the agent over `link`; sessions connect to `listener`."""
        self._link, self._listener, self._server = link, listener, server
        self._guests = Guests()
        self._opening: list[tuple[list[dict[str, str]], list[int]]] = []  # a round that comes in several packets
        self._outputs: list[int] = []
        self._processes: dict[int, int] = {}  # the place of each process
        self._kill_at: dict[int, float] = {}  # by process
        self._sessions: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._rank: dict[str, str] | None = None  # in a forked rank, what it is told
        self._hung_up = False

    def serve(self) -> dict[str, str] | None:
        """Serve until the agent hangs up: None. In a forked rank: the variables it was given."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        self._listener.setblocking(False)
        for source, act in (
            (self._link, self._hear_agent),
            (self._wakeup_read, self._reap),
            (self._listener, self._welcome),
            (self._server.stderr, self._hear_server),
        ):
            self._selector.register(source, selectors.EVENT_READ, act)  # type: ignore[arg-type]
        starter_protocol.send(self._link, {"ready": True})
        while not self._hung_up:
            due = min(self._kill_at.values(), default=_NEVER) - time.monotonic()
            for key, _ in self._selector.select(None if due == _NEVER else max(0.0, due)):
                key.data()
                if self._rank is not None:
                    return self._rank
            self._kill_the_late()
        return None

    def close(self) -> None:
        """End sshd; the sessions end with their sockets."""
        self._server.kill()
        self._server.wait()

    def _hear_agent(self) -> None:
        received = starter_protocol.receive(self._link)
        if received is None:
            self._hung_up = True
            return
        packet, outputs = received
        self._opening.append((starter_protocol.ranks_of(packet), outputs))
        if packet["more"]:
            return
        opening, self._opening = self._opening, []
        for output in self._outputs:
            os.close(output)
        self._outputs = [output for _, outputs in opening for output in outputs]
        self._do(self._guests.opened([variables for ranks, _ in opening for variables in ranks]))

    def _welcome(self) -> None:
        session, _ = self._listener.accept()
        session.setblocking(False)
        self._sessions[session.fileno()] = session
        self._unread[session.fileno()] = b""
        self._selector.register(session, selectors.EVENT_READ, partial(self._hear_session, session.fileno()))

    def _hear_session(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is None:  # let go a moment ago, in the same turn
            return
        try:
            data = session.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._let_go(number)
            self._do(self._guests.left(number))
            return
        line, newline, self._unread[number] = (self._unread[number] + data).partition(b"\n")
        if not newline:
            self._unread[number] = line
            return
        try:
            environment = {str(name): str(value) for name, value in json.loads(line)["environment"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):  # not from hosted.py
            self._let_go(number)
            self._do(self._guests.left(number))
        else:
            self._do(self._guests.asked(number, environment))

    def _hear_server(self) -> None:
        """Read on what sshd says, so that it never waits; its end is ours, since nobody reaches this node any more."""
        assert self._server.stderr is not None
        if self._server.stderr.read(1 << 16) == b"":
            print("composesim hosting: sshd has ended", file=sys.stderr)
            self._hung_up = True

    def _do(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Fork):
                self._fork(act)
                if self._rank is not None:
                    return
            elif isinstance(act, Stop):
                self._stop(act.place)
            elif isinstance(act, Answer):
                self._answer(act)
            elif isinstance(act, Report):
                starter_protocol.send(self._link, {"ended": act.place, "status": act.status, "stopped": act.stopped})

    def _fork(self, act: Fork) -> None:
        parent, output = os.getpid(), self._outputs[act.place]
        pid = os.fork()
        if pid == 0:
            become_rank(parent, output, [self._wakeup_read, self._wakeup_write, *self._outputs])
            self._selector.close()
            for ours in (self._link, self._listener, *self._sessions.values()):
                ours.close()
            self._server.returncode = 0  # no child of this process
            self._rank = act.variables
            return
        self._processes[pid] = act.place
        starter_protocol.send(self._link, {"started": act.place, "pid": pid})

    def _stop(self, place: int) -> None:
        for pid, at in self._processes.items():
            if at == place:
                _signal(pid, signal.SIGTERM)
                self._kill_at[pid] = time.monotonic() + GRACE_SECONDS

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, at in self._kill_at.items() if at <= now]:
            del self._kill_at[pid]
            _signal(pid, signal.SIGKILL)

    def _answer(self, act: Answer) -> None:
        session = self._sessions.get(act.session)
        if session is not None:
            with contextlib.suppress(OSError):  # it has gone: we hear that next
                session.send(json.dumps({"status": act.status, "why": act.why}).encode() + b"\n")
            self._let_go(act.session)

    def _let_go(self, number: int) -> None:
        session = self._sessions.pop(number)
        self._unread.pop(number)
        self._selector.unregister(session)
        session.close()

    def _reap(self) -> None:
        os.read(self._wakeup_read, 512)
        for pid in list(self._processes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._kill_at.pop(pid, None)
                self._do(self._guests.ended(self._processes.pop(pid), exit_status(status)))
                if self._rank is not None:
                    return


def _signal(pid: int, number: int) -> None:
    """A rank and all that it started: it leads a group of its own, unless it was forked this instant."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _begin(agent: int, descriptor: int) -> dict[str, str] | None:
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    # Removed by hand: a forked rank leaves by the same way, and must not.
    folder = tempfile.mkdtemp(prefix="composesim-ssh-")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/socket")
    listener.listen(1024)
    server = start_server(Path(folder))
    instrument.install()
    import_framework(os.environ.get("COMPOSESIM_IMPORT", "torch"))
    hosting = Hosting(link, listener, server)
    variables = hosting.serve()
    if variables is None:
        hosting.close()
        shutil.rmtree(folder, ignore_errors=True)
    return variables


def main(arguments: list[str]) -> None:
    """Serve the agent and its sessions; in a rank forked meanwhile: become it."""
    agent, descriptor, _, _, *words = arguments
    variables = _begin(int(agent), int(descriptor))
    if variables is None:
        os._exit(0)
    os.environ.update(variables)
    script_runner.run(script_runner.Program.from_arguments(words))
