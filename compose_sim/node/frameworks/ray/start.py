"""How is a node of Ray started? By `ray start` itself, called within this process, with what this machine or container has."""

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

from ...master.driver_api import MISSING, TOO_OLD
from ...shared.installed import Unfit, is_older, version_of

LEAST_VERSION = "2.52"  # the first with tokens
_OBJECT_STORE_LEAST, _OBJECT_STORE_MOST = 80 << 20, 2 << 30  # bytes; Ray takes no less than 75 MB
_LAST_LINES = 20
_ALIVE = 0  # GcsNodeInfo.GcsNodeState
_PORTS = {  # of a node with an address of its own, so that a firewall, or whoever asks for metrics, can be told
    "--node-manager-port": 10002,
    "--object-manager-port": 10003,
    "--runtime-env-agent-port": 10004,
    "--dashboard-agent-grpc-port": 10005,
    "--dashboard-agent-listen-port": 52365,
    "--metrics-export-port": 8080,
    "--min-worker-port": 10100,
    "--max-worker-port": 19999,
}


class Failed(Exception):
    """`ray start` did not start anything."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What head and members are told alike."""
    parser.add_argument("--shm", type=int, required=True, help="bytes of /dev/shm that a node may use")
    parser.add_argument("--share", type=int, required=True, help="nodes among whom this machine is shared")
    parser.add_argument("--free-ports", action="store_true", help="any free ports: several nodes have one address")


def check_ray() -> str:
    """The version of Ray; Unfit where there is none, or one that knows no tokens. Ray is not imported."""
    version = version_of("ray")
    if not version:
        raise Unfit(MISSING, f"'{sys.executable}' has no ray")
    if is_older(version, LEAST_VERSION):
        raise Unfit(TOO_OLD, f"ray {version} is too old: {LEAST_VERSION} is the first with tokens")
    return version


def cpus_of(share: int) -> int:
    """The CPUs of a node for which none were named: its share of those that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // share)


def memory_of(limit: int, share: int) -> int:
    """Bytes of a node's memory: its limit, or its share of the machine's."""
    kibibytes = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return limit or int(kibibytes[1] if kibibytes else 1 << 20) * 1024 // share


def object_store_of(memory: int, shm: int) -> int:
    """Bytes of the object store: as Ray has it 30 % of the memory, but within /dev/shm, where it lies."""
    return max(_OBJECT_STORE_LEAST, min(memory * 3 // 10, shm * 9 // 10, _OBJECT_STORE_MOST))


def gpus_here() -> int:
    """How many GPUs this node sees, as it was bound to them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", os.environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    return len([name for name in named.split(",") if name not in ("", "void", "none", "-1", "NoDevFiles")])


def own_address() -> str:
    """The address under which others reach this container."""
    return socket.gethostbyname(socket.gethostname())


def port_words(*, free: bool) -> list[str]:
    """Ports of a node's own processes: fixed ones, or any."""
    return [f"{name}={0 if free else port}" for name, port in _PORTS.items()]


def make_folder(node: str, *, shared: bool) -> Path:
    """
    Where Ray keeps sockets and logs of a node: /tmp/ray in a container, else a folder below one that is ours alone.

    Ray lets everybody write to its folders. Failed where somebody else has made that one.
    """
    outer = Path(os.environ["RAY_TMPDIR"])
    if shared:
        with contextlib.suppress(FileExistsError):
            outer.mkdir(mode=0o700)
        found = outer.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Failed(f"'{outer}' is not a folder of this user alone")
    folder = outer / (node if shared else "ray")
    folder.mkdir(exist_ok=True)
    return folder


def nodes_of(client: Any) -> list[Any]:
    """What Ray itself lists as alive: GcsNodeInfo of the head and all nodes. Raises what Ray raises."""
    return [node for node in client.get_all_node_info(timeout=30).values() if node.state == _ALIVE]


def client_of(address: str) -> Any:
    """A client of Ray's head; Ray takes a loopback address for the machine's own one."""
    from ray._private.services import resolve_ip_for_localhost
    from ray._raylet import GcsClient

    host, _, port = address.rpartition(":")
    return GcsClient(address=f"{resolve_ip_for_localhost(host)}:{port}")


def start(words: list[str], folder: Path) -> None:
    """`ray start WORDS`; Failed with its reason. With --block it does not return before all is over."""
    os.environ.pop("RAY_ADDRESS", None)  # of the cluster that is not there yet
    from ray.scripts.scripts import start as ray_start

    try:
        ray_start.main([*words, f"--temp-dir={folder}"], standalone_mode=False)
    except Exception as error:  # whatever Ray raises, it means the same
        raise Failed(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def said_to(path: Path) -> Iterator[None]:
    """Let this process's stdout go to a file meanwhile: Ray's forty lines of advice are for people at a terminal."""
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


def last_words(path: Path) -> str:
    """The end of what Ray said there."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    return ""
