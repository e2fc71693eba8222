"""Which TCP ports of this machine's loopback are taken, and by whom?"""

from __future__ import annotations

import re

import psutil

from compose_sim.core.plan import Plan
from compose_sim.core.ports import port_taken
from compose_sim.engine.process import try_output_of
from compose_sim.errors import SpecError

# Who listens on one of these addresses leaves nobody else the port on 127.0.0.1.
_HERE = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")
_PROXY = "docker-proxy"


def listening_ports() -> dict[int, str]:
    """Port -> who has it, in words: `python3 (process 4242)`, `the container grafana`, `another user's process`."""
    sockets = [socket for socket in psutil.net_connections(kind="tcp") if socket.status == psutil.CONN_LISTEN]
    who = {socket.laddr.port: _words(socket.pid) for socket in sockets if socket.laddr and socket.laddr.ip in _HERE}
    if any(words.startswith(_PROXY) or words == _UNKNOWN for words in who.values()):
        who |= {port: f"the container {name}" for port, name in published_ports().items() if port in who}
    return who


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
    free = next(each for each in range(number + 1, number + 1000) if each not in listening)
    return port_taken(name, number, listening.get(number, "somebody whom this user may not see"), free=free)


def published_ports() -> dict[int, str]:
    """Port -> the running container for which Docker listens there; nothing where no Docker answers."""
    status, output = try_output_of(["docker", "ps", "--format", "{{.Names}}\t{{.Ports}}"])
    found: dict[int, str] = {}
    for line in output.splitlines() if status == 0 else ():
        name, _, ports = line.partition("\t")
        for entry in ports.split(", "):  # 127.0.0.1:8888->8888/tcp, or 0.0.0.0:9000-9001->9000-9001/tcp
            outside, arrow, _ = entry.partition("->")
            first, _, last = outside.rpartition(":")[2].partition("-")
            if arrow and entry.endswith("/tcp") and first.isdigit():
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return found


_UNKNOWN = "another user's process"


def _words(pid: int | None) -> str:
    if pid is None:
        return _UNKNOWN
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"
