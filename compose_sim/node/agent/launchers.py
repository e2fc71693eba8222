"""Run the process that starts a node's ranks, set their environment variables, and signal each with all that it started.

`warm` forks ranks from a Python that has imported torch, `env` starts a new Python for each, `torchrun` and `paddle` are
the frameworks' own launchers, `command` runs any command, and `hosted` starts a rank whenever a launcher outside the node
requests one by ssh.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from ..shared import roles, starter_protocol
from ..shared.master_protocol import Message
from ..shared.process import is_on_cluster
from . import usage

INHERITED = "COMPOSESIM_STARTER"  # "PID DESCRIPTOR" of a starter that was forked for this agent (starters/zygote.py)
LAUNCHERS = ("warm", "torchrun", "env", "command", "paddle", "hosted")
ROUND_LAUNCHERS = {"torchrun": "torchrun", "paddle": "paddle-launch"}  # launcher -> role; one process per round
SLURM_STEP = "SLURM_STEP_ID"  # set by srun, and if a job file starts the ranks by it
_EXIT_SECONDS = 2.0


@dataclass(frozen=True)
class Launch:
    """
    What this node runs.

    `program` is the command line after `python`, or the whole one if the launcher is `command`. `master_address` is the
    host of rank 0 if rank 0 listens itself.
    """

    launcher: str
    program: tuple[str, ...]
    run: str
    nproc: int
    master_address: str | None = None

    @property
    def is_hosted(self) -> bool:
        """Whether another launcher starts ranks, perhaps several times within a round."""
        return self.launcher == "hosted"


def rank_variables(launch: Launch, round_: Message, local_rank: int) -> dict[str, str]:
    """Return the environment variables of one rank in a round, in addition to the node's."""
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
    if SLURM_STEP in os.environ:
        variables.update(_slurm_variables(launch, round_, rank, local_rank))
    return {name: str(value) for name, value in variables.items()}


def _command_variables(round_: Message) -> dict[str, object]:
    """Return the variables for frameworks that need a list of hosts."""
    return {
        "COMPOSESIM_NODES": ",".join(round_["nodes"]),
        "COMPOSESIM_SLOTS": ",".join(map(str, round_["nproc"])),
        "COMPOSESIM_HOSTFILE": f"{os.environ['COMPOSESIM_SHARED']}/hostfile",
    }


def _torchrun_variables(launch: Launch, round_: Message, rank: int) -> dict[str, object]:
    """Return the variables that torchrun sets in addition to those that torch.distributed reads."""
    listens_itself = launch.master_address or round_["store_host"] is None
    return {
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": round_["world_size"],
        "GROUP_WORLD_SIZE": round_["group_world_size"],
        "TORCHELASTIC_RUN_ID": launch.run,
        # How often these ranks were restarted, for any reason: scripts use it to decide whether to resume.
        "TORCHELASTIC_RESTART_COUNT": round_["generation"],
        "TORCHELASTIC_MAX_RESTARTS": round_["max_restarts"],
        "TORCHELASTIC_USE_AGENT_STORE": not listens_itself,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _slurm_variables(launch: Launch, round_: Message, rank: int, local_rank: int) -> dict[str, object]:
    """Return what srun sets for a task: each rank is one."""
    return {
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local_rank,
        "SLURM_NODEID": round_["group_rank"],
        "SLURM_NTASKS": round_["world_size"],
        "SLURM_NPROCS": round_["world_size"],
        "SLURM_NNODES": len(round_["nodes"]),
        "SLURM_STEP_NUM_TASKS": round_["world_size"],
        "SLURM_NTASKS_PER_NODE": launch.nproc,
    }


class InheritedProcess:
    """A child that another process started for us, with methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        """Take over the process, which is a child of this one."""
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
    """The process that starts the ranks (the fork server, or a framework's launcher) and its channel."""

    def __init__(self, launch: Launch) -> None:
        """Take over an inherited starter, or start one, which imports while the nodes still find each other."""
        inherited = os.environ.pop(INHERITED, "")  # only the first starter is inherited
        self._process: subprocess.Popen[bytes] | InheritedProcess
        if inherited:
            pid, descriptor = map(int, inherited.split())
            self.link, self._process = socket.socket(fileno=descriptor), InheritedProcess(pid)
            self.link.setblocking(False)
            self.link.set_inheritable(False)
        else:
            self._start_process(launch)

    def _start_process(self, launch: Launch) -> None:
        role = "sshd-starter" if launch.is_hosted else ROUND_LAUNCHERS.get(launch.launcher, "fork-server")
        self.link, theirs = starter_protocol.pair()
        self.link.setblocking(False)
        command = roles.command(role, str(os.getpid()), str(theirs.fileno()), launch.launcher, "--", *launch.program)
        # In a new session, because an interrupt from a terminal is for the agent, which stops the ranks in order.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()

    def start(self, ranks: Sequence[dict[str, str]], outputs: Sequence[int]) -> None:
        """Start these ranks, and close the descriptors for their output here."""
        try:
            starter_protocol.send_ranks(self.link, ranks, outputs)
        except ConnectionError:  # it has died, as the end of the channel will show
            return
        finally:
            for output in outputs:
                os.close(output)

    def receive(self) -> starter_protocol.Packet | None:
        """Return the next report, {} if there is none, or None when the starter has ended."""
        try:
            received = starter_protocol.receive(self.link)
        except BlockingIOError:
            return {}
        return received and received[0]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.link.fileno() < 0

    def close(self, *, at_once: bool = False) -> int:
        """End the process, and return the exit code, or minus the signal that ended it."""
        self.link.close()
        try:
            return self._process.wait(0 if at_once else _EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: `status` is an exit code or minus a signal, as in `subprocess`."""

    status: int

    @property
    def code(self) -> int | None:
        return None if self.status < 0 else self.status

    @property
    def signal(self) -> int | None:
        return -self.status if self.status < 0 else None

    def __str__(self) -> str:
        """Return `SIGKILL` or `exit code 3`."""
        return signal.Signals(-self.status).name if self.status < 0 else f"exit code {self.status}"


@dataclass
class RankProcess:
    """
    A rank of the current round. `pid` is also the process group; it is 0 before the start, and after the group has ended.

    A rank that another launcher starts counts as `ended` while it does not run, because nothing waits for it.
    """

    rank: int
    pid: int = 0
    ended: bool = False

    def signal(self, number: int) -> None:
        """Signal the rank and its children; signal 0 only checks whether any are left."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)
            if not (self.ended and number == signal.SIGKILL):
                return
        if self.ended:  # the group has ended as well, and the kernel may reuse the id
            self.pid = 0
            return
        # It was forked just now and does not lead a group yet; or it has ended, and that will be reported next.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class ContainerLimits:
    """Counts how often the kernel enforced a limit of this node, to find the ranks that failed for that reason."""

    def __init__(self, *, contained: bool) -> None:
        """Start to count in a container, and in a job of a cluster; not in other processes, whose limits are those of the machine."""
        self._contained = contained or is_on_cluster()
        self._kills, self._refused = self._counted()

    def reached_by(self, status: int, *, refused: bool) -> dict[str, bool]:
        """
        Return whether a rank that has just ended with `status` ran out of memory (`oom`), or of process ids (`no_process_ids`).

        `refused` says that the rank itself could not be started for lack of a process id.
        """
        kills, refusals = self._kills, self._refused
        self._kills, self._refused = self._counted()
        return {
            "oom": status == -signal.SIGKILL and self._kills > kills,
            "no_process_ids": refused or (status != 0 and self._refused > refusals),
        }

    def _counted(self) -> tuple[int, int]:
        return (usage.out_of_memory_kills(), usage.refused_processes()) if self._contained else (0, 0)
