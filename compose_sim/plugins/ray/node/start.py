"""Start a node of Ray by calling `ray start` within this process, with the resources of this machine or container."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....node.master.driver_membership import require

OLDEST = "2.52"  # the first with tokens
_MIN_OBJECT_STORE, _MAX_OBJECT_STORE = 80 << 20, 2 << 30  # bytes; the minimum of Ray is 75 MB
_LAST_LINES = 20
_ALIVE = 0  # GcsNodeInfo.GcsNodeState
_PORTS = {  # of a node with a separate address: fixed, for firewalls and metrics
    "--node-manager-port": 10002,
    "--object-manager-port": 10003,
    "--runtime-env-agent-port": 10004,
    "--dashboard-agent-grpc-port": 10005,
    "--dashboard-agent-listen-port": 52365,
    "--metrics-export-port": 8080,
    "--min-worker-port": 10100,
    "--max-worker-port": 19999,
}


class RayError(Exception):
    """`ray start` has failed."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the head and the nodes have in common."""
    parser.add_argument("--shm", type=int, required=True, help="bytes of /dev/shm that a node may use")
    parser.add_argument("--share", type=int, required=True, help="number of nodes that share this machine")
    parser.add_argument("--free-ports", action="store_true", help="any free ports, because nodes share an address")


def require_ray() -> str:
    """Return the version of Ray; raises StartError if no supported version is installed. Does not import Ray."""
    hint = "composesim image build --recipe ray, or composesim up --python /path/to/python …"
    return require("ray", OLDEST, "ray", hint=hint)


def cpus_of(share: int) -> int:
    """Return the default number of CPUs of a node: a share of those that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // share)


def memory_of(limit: int, share: int) -> int:
    """Return the memory of a node in bytes: the limit, or a share of the machine's memory."""
    kibibytes = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return limit or int(kibibytes[1] if kibibytes else 1 << 20) * 1024 // share


def object_store_of(memory: int, shm: int) -> int:
    """Return the size of the object store in bytes: 30% of the memory, Ray's default, limited by the size of /dev/shm."""
    return max(_MIN_OBJECT_STORE, min(memory * 3 // 10, shm * 9 // 10, _MAX_OBJECT_STORE))


def visible_gpus() -> int:
    """Return the number of GPUs that are assigned to this node."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    return len([name for name in named.split(",") if name not in ("", "void", "none", "-1", "NoDevFiles")])


def own_address() -> str:
    """Return the address of this container."""
    return socket.gethostbyname(socket.gethostname())


def port_arguments(*, free: bool) -> list[str]:
    """Return options for the ports of a node's processes: fixed ports, or any free ones."""
    return [f"{name}={0 if free else port}" for name, port in _PORTS.items()]


def make_folder(node: str, *, shared: bool) -> Path:
    """
    Return the folder for a node's sockets and logs: /tmp/ray in a container, else a folder that only this user can enter.

    Ray makes its folders writable for everybody. Raises RayError if another user has made that folder.
    """
    outer = Path(os.environ["RAY_TMPDIR"])
    if shared:
        with contextlib.suppress(FileExistsError):
            outer.mkdir(mode=0o700)
        found = outer.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise RayError(f"'{outer}' is not a folder that only this user can enter")
    folder = outer / (node if shared else "ray")
    folder.mkdir(exist_ok=True)
    return folder


def nodes_of(client: Any) -> list[Any]:
    """Return the GcsNodeInfo of the head and of each node that Ray lists as alive."""
    return [node for node in client.get_all_node_info(timeout=30).values() if node.state == _ALIVE]


def client_of(address: str) -> Any:
    """Return a client of Ray's head; Ray replaces a loopback address with the machine's."""
    from ray._private.services import resolve_ip_for_localhost
    from ray._raylet import GcsClient

    host, _, port = address.rpartition(":")
    return GcsClient(address=f"{resolve_ip_for_localhost(host)}:{port}")


def start(arguments: list[str], folder: Path) -> None:
    """Call `ray start` with these arguments; raises RayError. With --block it returns when Ray has ended."""
    os.environ.pop("RAY_ADDRESS", None)  # it names the cluster that does not run yet
    from ray.scripts.scripts import start as ray_start

    try:
        ray_start.main([*arguments, f"--temp-dir={folder}"], standalone_mode=False)
    except Exception as error:
        raise RayError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def stdout_to(path: Path) -> Iterator[None]:
    """Redirect this process's stdout to a file: `ray start` prints forty lines of advice for interactive use."""
    sys.stdout.flush()
    kept = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def last_lines(path: Path) -> str:
    """Return the last lines of a file."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    return ""
