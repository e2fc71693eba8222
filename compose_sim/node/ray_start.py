"""How is a node of Ray started? By `ray start` itself, called within this process, with what this machine or container has."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

LEAST_VERSION = "2.52"  # the first with tokens
_OBJECT_STORE_LEAST, _OBJECT_STORE_MOST = 80 << 20, 2 << 30  # bytes; Ray takes no less than 75 MB
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


class Unfit(Exception):
    """This Python cannot run Ray: `missing` or too old."""

    def __init__(self, message: str, *, missing: bool) -> None:
        super().__init__(message)
        self.missing = missing


def add_options(parser: argparse.ArgumentParser) -> None:
    """What head and members are told alike."""
    parser.add_argument("--shm", type=int, required=True, help="bytes of /dev/shm that a node may use")
    parser.add_argument("--share", type=int, required=True, help="nodes among whom this machine is shared")
    parser.add_argument("--free-ports", action="store_true", help="any free ports: several nodes have one address")


def check_ray() -> str:
    """The version of Ray; Unfit where there is none, or one that knows no tokens. Ray is not imported."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise Unfit(f"'{sys.executable}' has no ray", missing=True) from None
    numbers = [tuple(int(part) for part in re.findall(r"\d+", text)[:2]) for text in (version, LEAST_VERSION)]
    if numbers[0] < numbers[1]:
        raise Unfit(f"ray {version} is too old: {LEAST_VERSION} is the first with tokens", missing=False)
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


def folder_of(node: str, *, shared: bool) -> str:
    """Where Ray keeps sockets and logs. Paths of sockets have 107 characters, and Ray adds up to 70, so a run's folder is too deep."""
    if not shared:
        return "/tmp/ray"
    run = hashlib.sha256(os.environ["COMPOSESIM_RUN"].encode()).hexdigest()[:8]
    return f"/tmp/composesim-{run}/{node}"


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


def start(words: list[str], folder: str) -> None:
    """`ray start WORDS`; SystemExit with its last words on stderr where it fails. With --block, it never returns."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    said = Path(folder) / "start.log"
    os.environ.pop("RAY_ADDRESS", None)  # of the cluster that is not there yet
    sys.stdout.flush()
    kept = os.dup(1)
    with said.open("wb") as file:  # forty lines of advice, for people at a terminal
        os.dup2(file.fileno(), 1)
    try:
        from ray.scripts.scripts import start as ray_start

        ray_start.main([*words, f"--temp-dir={folder}"], standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - whatever Ray raises: the head's or the node's end, with Ray's own words
        _show(said)
        sys.exit(f"composesim: ray start failed: {type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _show(said: Path) -> None:
    lines = said.read_text(errors="replace").splitlines()
    print("\n".join(lines[-20:]), file=sys.stderr)


def end_now(number: int) -> NoReturn:
    """End as one does whom a signal ends."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
