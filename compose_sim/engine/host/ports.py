"""List the TCP ports in use on this machine's loopback address, and which process or container uses each."""

from __future__ import annotations

import re
from pathlib import Path

from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.ports import next_free, port_taken
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import EngineSilentError, SpecError

_UNKNOWN = "another user's process"
# A port in use on one of these addresses is not free on 127.0.0.1.
_LOOPBACK = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1", "[::]")


def listening_ports() -> dict[int, str]:
    """Return who uses each port: `python3 (process 4242)`, `the container grafana` or `another user's process`."""
    import psutil  # takes 30 ms, and only runs that publish ports need it

    sockets = [socket for socket in psutil.net_connections(kind="tcp") if socket.status == psutil.CONN_LISTEN]
    processes = {each.laddr.port: _describe(each.pid) for each in sockets if each.laddr and each.laddr.ip in _LOOPBACK}
    # Docker may have the kernel forward the ports of containers: they are in no list of sockets.
    return {**processes, **{port: f"the container {name}" for port, name in _ports_of_containers().items()}}


def port_in_use(docker_error: str) -> int:
    """Return the port that Docker could not bind because it is in use; 0 if the error is a different one."""
    if not any(text in docker_error for text in ("port is already allocated", "address already in use")):
        return 0
    match = re.search(r"127\.0\.0\.1:(\d+)", docker_error)
    return int(match[1]) if match else 0


def port_in_use_error(plan: Plan, number: int) -> SpecError:
    """Make the error for a port of the plan that has been bound by another process between planning and starting."""
    listening = listening_ports()
    name = next(port.name for port in plan.published if port.host_port == number)
    return port_taken(name, number, listening.get(number, _UNKNOWN), free=next_free(number + 1, listening))


def _describe(pid: int | None) -> str:
    if pid is None:
        return _UNKNOWN
    try:
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (process {pid})"
    except OSError:  # it has exited, or this is not Linux
        return f"process {pid}"


def _ports_of_containers() -> dict[int, str]:
    """Return the container behind each published port; nothing if Docker does not respond."""
    try:
        status, output = try_output_of(["docker", "ps", "--format", "{{.Names}}\t{{.Ports}}"])
    except EngineSilentError:
        return {}
    found: dict[int, str] = {}
    for line in output.splitlines() if status == 0 else ():
        name, _, ports = line.partition("\t")
        for entry in ports.split(", "):  # 127.0.0.1:8888->8888/tcp, or 0.0.0.0:9000-9001->9000-9001/tcp
            outside, arrow, _ = entry.partition("->")
            address, _, numbers = outside.rpartition(":")
            first, _, last = numbers.partition("-")
            if arrow and entry.endswith("/tcp") and address in _LOOPBACK:
                found |= dict.fromkeys(range(int(first), int(last or first) + 1), name)
    return found
