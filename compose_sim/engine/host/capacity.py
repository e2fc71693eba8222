"""Measure how many processes, how much memory and how much on a disk this machine has room for, and which ports are in use."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.services import next_free, port_taken
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import EngineSilentError, SpecError

_PLENTY = 10_000  # more processes and threads than any run of one machine needs
_GROUPS = Path("/sys/fs/cgroup")
# Of each resource: what a control group may have and what it has, by the versions 2 and 1 of control groups.
_GROUP_FILES = {
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
    "memory": (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}


def free_process_ids() -> int | None:
    """Return how many processes and threads may still start; None if the kernel does not show it."""
    try:
        most = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    except (OSError, ValueError):
        return None
    running = _running_threads()
    return None if running is None else max(0, most - running)


def own_free_process_ids() -> int | None:
    """Return how many processes and threads the caller may still start by its user's limit and its control groups; None without one."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    groups = _left_in_groups("pids")
    if os.getuid() == 0 or most == resource.RLIM_INFINITY:  # the limit does not bind root
        return groups
    running = _running_threads()
    if running is None or most - running < _PLENTY:
        running = _own_threads()
    left = max(0, most - running)
    return left if groups is None else min(left, groups)


def own_free_memory() -> int | None:
    """Return the bytes that the control groups of this process leave it; None if there is no limit."""
    return _left_in_groups("memory")


def most_neighbors() -> int | None:
    """Return how many neighbors the kernel keeps for all networks together (arp(7)); None in a container, which cannot see it."""
    try:
        return int(Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3").read_text())
    except (OSError, ValueError):
        return None


def available_memory() -> int | None:
    """Return the bytes that new processes can use; None if the kernel does not show it."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def free_disk(folder: Path) -> int | None:
    """Return the bytes that may be written to a folder, which need not exist; None if that cannot be seen."""
    for path in (folder, *folder.parents):
        try:
            return shutil.disk_usage(path).free
        except OSError:  # there is none yet, or this user may not enter it
            continue
    return None


def _running_threads() -> int | None:
    """Return how many threads all users run (proc_loadavg(5)); None if the kernel does not show it."""
    found = re.search(r"/(\d+) ", _text(Path("/proc/loadavg")))
    return int(found[1]) if found else None


def _own_threads() -> int:
    import psutil  # takes 30 ms

    mine = [each for each in psutil.process_iter(["num_threads", "uids"]) if each.info["uids"]]
    return sum(each.info["num_threads"] or 0 for each in mine if each.info["uids"].real == os.getuid())


def _left_in_groups(kind: str) -> int | None:
    """Return what the strictest control group above this process leaves of a resource (cgroups(7)); None without a limit."""
    left = []
    for group, (most, used) in _own_groups(kind):
        try:
            cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _text(group / f"{kind}.stat"), re.MULTILINE)
            has = int(_text(group / used)) - int(cache[1] if cache else 0)  # the kernel gives up what it only caches
            left.append(int(_text(group / most)) - has)
        except ValueError:  # "max", or there are no such files: a container may see its own group as the root
            continue
    return max(0, min(left)) if left else None


def _own_groups(kind: str) -> Iterator[tuple[Path, tuple[str, str]]]:
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and kind not in controllers.split(","):
            continue
        root = _GROUPS / kind if controllers else _GROUPS  # version 1 has a tree for each controller
        below = Path(path).relative_to("/")
        for group in (below, *below.parents):
            yield root / group, _GROUP_FILES[kind][bool(controllers)]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


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
