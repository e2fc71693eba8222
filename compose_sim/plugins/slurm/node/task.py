"""Run, enter or signal a node of a Slurm job: what `srun` starts on the machine of the node.

Arguments of the role `slurm-task`:
    run COMMAND ARGS...                become the first process of the node
    exec RUN NODE COMMAND ARGS...      become a command with the environment and the working directory of the node
    signal RUN NODE NAME               send a signal: TERM to the first process of the node, any other one to all of them

A process belongs to the node that its environment names, because Slurm may track processes by their process group only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from ....node.shared.process import STOP_NOTE, environment_of

AGENT = "COMPOSESIM_AGENT_PID"
_SIOCGIFADDR = 0x8915
_BEGUN_WITHIN, _GONE_WITHIN = 10.0, 30.0


def main(arguments: list[str]) -> int:
    """Do what the first argument names, and return the exit code."""
    kind, *rest = arguments
    if kind == "run":
        environment = {**os.environ, AGENT: str(os.getpid())}
        master = environment.pop("COMPOSESIM_INTERFACE_TO", "")
        interface = _interface_to(master) if master else ""
        if interface:  # else gloo takes the address of the machine's name, often a loopback one
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        cpus = int(environment.get("SLURM_CPUS_ON_NODE", "1")) // int(environment.get("COMPOSESIM_NPROC", "1"))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cpus)))  # else each rank would use all of them
        return _become(rest, environment)
    run, node, *rest = rest
    if kind == "exec":
        agent = _await_agent(run, node)
        if agent is None:
            print(f"'{node}' of run '{run}' is not running", file=sys.stderr)
            return 126
        os.chdir(Path(f"/proc/{agent}/cwd").readlink())
        return _become(rest, environment_of(agent))
    return _signal(run, node, rest[0])


def _become(command: list[str], environment: dict[str, str]) -> int:
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{environment.get('COMPOSESIM_NODE', '')}: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _signal(run: str, node: str, name: str) -> int:
    number = signal.Signals[f"SIG{name}"]
    agent = _await_agent(run, node)
    if name == "TERM" and (folder := environment_of(agent or 0).get("COMPOSESIM_DIR")):
        Path(folder, STOP_NOTE).touch()
    sent: set[int] = set()
    deadline = time.monotonic() + _GONE_WITHIN
    # Until no new process appears: one may have been forking. A killed process must also have left.
    while found := {pid: values for pid, values in _processes(run, node).items() if name == "KILL" or pid not in sent}:
        # The agent first when stopping, so that it does not notice that ranks stand still.
        for pid in sorted(found, key=lambda pid: found[pid].get(AGENT) != str(pid)):
            if name != "TERM" or found[pid].get(AGENT) == str(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        sent |= set(found)
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.01)
    return 0


def _await_agent(run: str, node: str) -> int | None:
    """Return the first process of a node, which Slurm may still be starting; None if it is not running on this machine."""
    deadline = time.monotonic() + _BEGUN_WITHIN
    while time.monotonic() < deadline:
        for pid, values in _processes(run, node).items():
            if values.get(AGENT) == str(pid):
                return pid
        time.sleep(0.01)
    return None


def _processes(run: str, node: str) -> dict[int, dict[str, str]]:
    """Return the environment of each live process of the node, by process id, without this one."""
    pids = [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) != os.getpid()
    ]
    found = {pid: environment_of(pid) for pid in pids}
    return {
        pid: values
        for pid, values in found.items()
        if (values.get("COMPOSESIM_RUN"), values.get("COMPOSESIM_NODE")) == (run, node) and AGENT in values
    }


def _interface_to(host: str) -> str:
    """Return the network interface through which this machine reaches a host; "" if that is not known."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == own:
                    return name
    return ""
