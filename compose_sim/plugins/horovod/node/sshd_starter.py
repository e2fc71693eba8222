"""Start the ranks of a node when another launcher requests them by ssh: run sshd, and fork a rank for each session.

Arguments of the role `sshd-starter`: AGENT_PID CHANNEL_DESCRIPTOR hosted -- [-m] SCRIPT ARGS...

Like the fork server of the warm launcher, it imports what ranks need once, while the nodes still find each other.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ....node.rank import instrument
from ....node.shared import process, starter_protocol
from ....node.shared.event_log import EventLog
from ....node.starters import quick_exit
from ....node.starters.fork_server import become_rank, run_rank, wake_on_child_exit
from ....node.starters.import_ahead import import_ahead
from . import ssh
from .ssh import GRACE_SECONDS, Action, AnswerSession, ForkRank, SshSessions, StopRank

_NEVER = float("inf")


def start_sshd(folder: Path) -> subprocess.Popen[bytes]:
    """Run sshd with a new host key in `folder`, and report the public key as soon as sshd listens."""
    sshd = ssh.program("sshd")
    if sshd is None:
        sys.exit("composesim: this node has no sshd, which Debian and Ubuntu have in the package openssh-server")
    public = ssh.make_key(folder / "host_key")
    settings = ssh.server_settings(
        host_key=folder / "host_key",
        authorized=ssh.authorized_keys(Path(os.environ["COMPOSESIM_SHARED"])),
        rank_socket=folder / "socket",
    )
    (folder / "sshd_config").write_text(settings)
    # In the foreground, with the log on stderr, where a line shows that sshd listens. Later lines are discarded.
    server = subprocess.Popen(
        [sshd, "-D", "-e", "-f", str(folder / "sshd_config")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=partial(process.die_with, os.getpid()),
    )
    assert server.stderr is not None
    log = b""
    while b"listening" not in log:
        line = server.stderr.readline()
        if not line:
            sys.exit(f"composesim: sshd ended: {log.decode(errors='replace').strip()}")
        log += line
    os.set_blocking(server.stderr.fileno(), False)
    EventLog.from_environment(os.environ).emit("ssh", port=ssh.PORT, host_key=public)
    return server


class SshdStarter:
    """The sockets and processes of a node's ssh sessions."""

    def __init__(self, link: socket.socket, listener: socket.socket, server: subprocess.Popen[bytes]) -> None:
        """Talk to the agent over `link`; sessions connect to `listener`."""
        self._link, self._listener, self._server = link, listener, server
        self._ssh_sessions = SshSessions()
        # Received so far: a round may take several packets.
        self._round: tuple[list[dict[str, str]], list[int]] = ([], [])
        self._outputs: list[int] = []
        self._slots: dict[int, int] = {}  # by process
        self._kill_at: dict[int, float] = {}  # by process
        self._sessions: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        self._wakeup, self._wakeup_write = wake_on_child_exit()
        self._selector = selectors.DefaultSelector()
        self._rank: dict[str, str] | None = None  # in a forked rank: its variables
        self._agent_left = False

    def serve(self) -> dict[str, str] | None:
        """Serve until the agent disconnects, and return None; return a rank's variables in a process forked for it."""
        self._listener.setblocking(False)
        for source, handle in (
            (self._link, self._read_agent),
            (self._wakeup, self._reap),
            (self._listener, self._accept),
            (self._server.stderr, self._read_sshd),
        ):
            self._selector.register(source, selectors.EVENT_READ, handle)  # type: ignore[arg-type]
        starter_protocol.send(self._link, {"ready": True})
        while not self._agent_left:
            timeout = min(self._kill_at.values(), default=_NEVER) - time.monotonic()
            for key, _ in self._selector.select(None if timeout == _NEVER else max(0.0, timeout)):
                key.data()
                if self._rank is not None:
                    return self._rank
            self._kill_overdue()
        return None

    def close(self) -> None:
        """Stop sshd, and with it all sessions."""
        self._server.kill()
        self._server.wait()

    def _read_agent(self) -> None:
        received = starter_protocol.receive(self._link)
        if received is None:
            self._agent_left = True
            return
        packet, outputs = received
        ranks = [*self._round[0], *starter_protocol.ranks_of(packet)]
        outputs = [*self._round[1], *outputs]
        if packet["more"]:
            self._round = ranks, outputs
            return
        self._round = [], []
        for output in self._outputs:
            os.close(output)
        self._outputs = outputs
        self._perform(self._ssh_sessions.start_round(ranks))

    def _accept(self) -> None:
        session, _ = self._listener.accept()
        session.setblocking(False)
        self._sessions[session.fileno()] = session
        self._unread[session.fileno()] = b""
        self._selector.register(session, selectors.EVENT_READ, partial(self._read_session, session.fileno()))

    def _read_session(self, number: int) -> None:
        session = self._sessions.get(number)
        if session is None:  # closed earlier in this iteration
            return
        try:
            data = session.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        line, newline, self._unread[number] = (self._unread[number] + data).partition(b"\n")
        if data and not newline:
            self._unread[number] = line
            return
        try:
            environment = (
                {str(name): str(value) for name, value in json.loads(line)["environment"].items()} if data else None
            )
        except (ValueError, KeyError, TypeError, AttributeError):  # not from ssh_rank.py
            environment = None
        if environment is None:
            self._close_session(number)
            self._perform(self._ssh_sessions.left(number))
        else:
            self._perform(self._ssh_sessions.request(number, environment))

    def _read_sshd(self) -> None:
        """Read sshd's log, so that it never blocks; without sshd this node cannot be reached, so exit."""
        assert self._server.stderr is not None
        if self._server.stderr.read(1 << 16) == b"":
            print("composesim: sshd of this node has ended", file=sys.stderr)
            self._agent_left = True

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, ForkRank):
                self._fork(action)
                if self._rank is not None:
                    return
            elif isinstance(action, StopRank):
                self._stop(action.slot)
            elif isinstance(action, AnswerSession):
                self._answer(action)
            else:
                report = {"ended": action.slot, "status": action.status, "stopped": action.stopped}
                starter_protocol.send(self._link, report)

    def _fork(self, action: ForkRank) -> None:
        parent, output = os.getpid(), self._outputs[action.slot]
        pid = os.fork()
        if pid == 0:
            become_rank(parent, output, [self._wakeup, self._wakeup_write, *self._outputs])
            self._selector.close()
            for ours in (self._link, self._listener, *self._sessions.values()):
                ours.close()
            self._server.returncode = 0  # sshd is not a child of this process
            self._rank = action.variables
            return
        self._slots[pid] = action.slot
        starter_protocol.send(self._link, {"started": action.slot, "pid": pid})

    def _stop(self, slot: int) -> None:
        for pid, its_slot in self._slots.items():
            if its_slot == slot:
                _signal(pid, signal.SIGTERM)
                self._kill_at[pid] = time.monotonic() + GRACE_SECONDS

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid in [pid for pid, at in self._kill_at.items() if at <= now]:
            del self._kill_at[pid]
            _signal(pid, signal.SIGKILL)

    def _answer(self, action: AnswerSession) -> None:
        session = self._sessions.get(action.session)
        if session is not None:
            with contextlib.suppress(OSError):  # the session has ended
                session.send(json.dumps({"status": action.status, "error": action.error}).encode() + b"\n")
            self._close_session(action.session)

    def _close_session(self, number: int) -> None:
        session = self._sessions.pop(number)
        self._unread.pop(number)
        self._selector.unregister(session)
        session.close()

    def _reap(self) -> None:
        os.read(self._wakeup, 512)
        for pid in list(self._slots):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._kill_at.pop(pid, None)
                status = os.waitstatus_to_exitcode(status)
                self._perform(self._ssh_sessions.rank_ended(self._slots.pop(pid), status))
                if self._rank is not None:
                    return


def _signal(pid: int, number: int) -> None:
    """Signal a rank and everything it started; a rank leads its own process group, unless it was forked just now."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _serve(agent: int, descriptor: int) -> dict[str, str] | None:
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    # No context manager: a forked rank returns from here as well, and must not remove the folder.
    folder = tempfile.mkdtemp(prefix="composesim-ssh-")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{folder}/socket")
    Path(folder, "socket").chmod(0o600)
    listener.listen(1024)
    server = start_sshd(Path(folder))
    instrument.install()
    with quick_exit.prepared():
        import_ahead(os.environ.get("COMPOSESIM_IMPORT", "torch"))
    starter = SshdStarter(link, listener, server)
    variables = starter.serve()
    if variables is None:
        starter.close()
        shutil.rmtree(folder, ignore_errors=True)
    return variables


def main(arguments: list[str]) -> None:
    """Serve the agent and the sessions; in a process forked for a rank, run the rank."""
    agent, descriptor, _, _, *program = arguments
    run_rank(_serve(int(agent), int(descriptor)), "hosted", program)
