"""Which TCP ports of this machine's loopback are taken, and by whom?"""

from __future__ import annotations

import re
from pathlib import Path

from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.ports import next_free, port_taken
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import SpecError

# Who listens on one of these addresses leaves nobody else the port on 127.0.0.1.
_HERE = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1", "[::]")
_SOMEBODY = "another user's process"


def listening_ports() -> dict[int, str]:
    """Port -> who has it, in words: `python3 (process 4242)`, `the container grafana`, `another user's process`."""
    import psutil  # 30 ms, which only runs that publish something need to spend

    sockets = [socket for socket in psutil.net_connections(kind="tcp") if socket.status == psutil.CONN_LISTEN]
    processes = {each.laddr.port: _words(each.pid) for each in sockets if each.laddr and each.laddr.ip in _HERE}
    # Docker listens for containers, or has the kernel do so, which no list of sockets tells.
    return {**processes, **{port: f"the container {name}" for port, name in _ports_of_containers().items()}}


def port_in_use(complaint: str) -> int:
    """The port that Docker says somebody else has; 0 where it complains of something else."""
    if not any(words in complaint for words in ("port is already allocated", "address already in use")):
        return 0
    match = re.search(r"127\.0\.0\.1:(\d+)", complaint)
    return int(match[1]) if match else 0


def taken(plan: Plan, number: int) -> SpecError:
    """What is said where somebody took a port of the plan between planning and starting."""
    listening = listening_ports()
    name = next(port.name for port in plan.published if port.host_port == number)
    who = listening.get(number, "somebody whom this user may not see")
    return port_taken(name, number, who, free=next_free(number + 1, listening))


def _words(pid: int | None) -> str:
    if pid is None:
        return _SOMEBODY
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (process {pid})"
    except OSError:  # it has ended, or this is no Linux
        return f"process {pid}"


def _ports_of_containers() -> dict[int, str]:
    """Port of this machine -> the container that it leads to; nothing where no Docker answers."""
    status, output = try_output_of(["docker", "ps", "--format", "{{.Names}}\t{{.Ports}}"])
    found: dict[int, str] = {}
    for line in output.splitlines() if status == 0 else ():
        name, _, ports = line.partition("\t")
        for entry in ports.split(", "):  # 127.0.0.1:8888->8888/tcp, or 0.0.0.0:9000-9001->9000-9001/tcp
            outside, arrow, _ = entry.partition("->")
            address, _, numbers = outside.rpartition(":")
            first, _, last = numbers.partition("-")
            if arrow and entry.endswith("/tcp") and address in _HERE:
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return found
