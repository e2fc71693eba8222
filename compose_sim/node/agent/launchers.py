"""How does each launcher start a node's ranks, and with what variables? A process of its own starts them; this is its handle.

`warm` forks ranks from a Python that has imported torch; `env` starts a new Python for each; `torchrun` and `paddle` are the real
ones; `command` runs the words as they are; `hosted` starts a rank whenever a launcher of others asks for it, by ssh.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ..shared import roles, starter_protocol
from ..shared.master_protocol import Message

HANDED = "COMPOSESIM_STARTER"  # "PID DESCRIPTOR" of a starter that was forked for us from one that serves several nodes
LAUNCHERS = ("warm", "torchrun", "env", "command", "paddle", "hosted")
# Of those that serve one round each; one process of starter.py serves all.
ROUND_LAUNCHERS = {"torchrun": "torchrun", "paddle": "paddle-launch"}  # launcher -> its role; one process per round
_SECONDS_TO_LEAVE = 2.0


@dataclass(frozen=True)
class Launch:
    """
    What this node was asked to run.

    `program` is the words after `python`, or all the words of a `command`; `master_address` the host where rank 0 listens itself.
    """

    launcher: str
    program: tuple[str, ...]
    run: str
    nproc: int
    master_address: str | None = None

    @property
    def is_hosted(self) -> bool:
        """Whether ranks begin, end and begin again within a round, at the word of a launcher that is not ours."""
        return self.launcher == "hosted"


def rank_variables(launch: Launch, round_: Message, local_rank: int) -> dict[str, str]:
    """The environment variables of one rank in a round, on top of the node's own."""
    rank = round_["first_rank"] + local_rank
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": round_["world_size"],
        "LOCAL_WORLD_SIZE": launch.nproc,
        "GROUP_RANK": round_["group_rank"],
        "NODE_RANK": round_["group_rank"],
        "MASTER_ADDR": launch.master_address or round_["store_host"] or round_["nodes"][0],
        "MASTER_PORT": round_["store_port"],
        "COMPOSESIM_GENERATION": round_["generation"],
    }
    if launch.launcher == "command":
        variables.update(_command_variables(round_))
    elif launch.launcher == "paddle":
        variables["GROUP_WORLD_SIZE"] = round_["group_world_size"]
    elif launch.launcher != "env":
        variables.update(_torchrun_variables(launch, round_, rank))
    return {name: str(value) for name, value in variables.items()}


def _command_variables(round_: Message) -> dict[str, object]:
    """Who else is there: for frameworks that find each other by a list of hosts."""
    return {
        "COMPOSESIM_NODES": ",".join(round_["nodes"]),
        "COMPOSESIM_SLOTS": ",".join(map(str, round_["nproc"])),
        "COMPOSESIM_HOSTFILE": f"{os.environ['COMPOSESIM_SHARED']}/hostfile",
    }


def _torchrun_variables(launch: Launch, round_: Message, rank: int) -> dict[str, object]:
    """What torchrun gives its ranks beyond the variables that torch.distributed itself reads."""
    listens_itself = launch.master_address or round_["store_host"] is None
    return {
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": round_["world_size"],
        "GROUP_WORLD_SIZE": round_["group_world_size"],
        "TORCHELASTIC_RUN_ID": launch.run,
        # How often these ranks were started anew, for whatever reason: scripts ask it whether to resume.
        "TORCHELASTIC_RESTART_COUNT": round_["generation"],
        "TORCHELASTIC_MAX_RESTARTS": round_["max_restarts"],
        "TORCHELASTIC_USE_AGENT_STORE": not listens_itself,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


class Handed:
    """A child that another process started for us; to wait for and kill it like a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        """Nobody but us may wait for it."""
        self._pid, self._handle = pid, os.pidfd_open(pid)
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            if not select.select([self._handle], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("starter", timeout or 0.0)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status

    def kill(self) -> None:
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class Starter:
    """The process that starts the ranks (the fork server, or a framework's own launcher), and the channel to it."""

    def __init__(self, launch: Launch) -> None:
        """Take over the one we were given, if we were; else begin at once: it imports while the nodes still find each other."""
        handed = os.environ.pop(HANDED, "")  # for the first only: a later one replaces one that has died
        self._process: subprocess.Popen[bytes] | Handed
        if handed:
            pid, descriptor = map(int, handed.split())
            self.link, self._process = socket.socket(fileno=descriptor), Handed(pid)
            self.link.setblocking(False)
            self.link.set_inheritable(False)
        else:
            self._start_process(launch)

    def _start_process(self, launch: Launch) -> None:
        role = "sshd-starter" if launch.is_hosted else ROUND_LAUNCHERS.get(launch.launcher, "fork-server")
        self.link, theirs = starter_protocol.pair()
        self.link.setblocking(False)
        words = (str(os.getpid()), str(theirs.fileno()), launch.launcher, "--", *launch.program)
        command = roles.command(role, *words)
        # A session of its own: an interrupt from a terminal is for the agent, who knows what it means.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()

    def start(self, ranks: Sequence[dict[str, str]], outputs: Sequence[int]) -> None:
        """Start these ranks; each writes to its output, which is ours no longer."""
        try:
            starter_protocol.send_ranks(self.link, ranks, outputs)
        except ConnectionError:  # it has died: the channel's end, which is read next, says so
            return
        finally:
            for output in outputs:
                os.close(output)

    def receive(self) -> starter_protocol.Packet | None:
        """What it reports, nothing if nothing after all; None when it has ended."""
        try:
            received = starter_protocol.receive(self.link)
        except BlockingIOError:
            return {}
        return received and received[0]

    @property
    def closed(self) -> bool:
        """Whether it was let go."""
        return self.link.fileno() < 0

    def close(self, *, at_once: bool = False) -> int:
        """Let it go, by force if need be. Its exit code, or minus the signal that ended it."""
        self.link.close()
        try:
            return self._process.wait(0 if at_once else _SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
