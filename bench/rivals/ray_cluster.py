"""Start a Ray cluster of bare processes on this machine with `ray start`."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.process import run_together
from bench.rivals.torchrun import free_port
from bench.setting import Setting

_MARK = "COMPOSESIM_BENCH_RAY"  # identifies processes that `ray start` leaves behind; `ray stop` would stop those of all users
# Any free port, since several nodes have one address.
_PORTS = [
    f"--{name}=0"
    for name in (
        "node-manager-port",
        "object-manager-port",
        "runtime-env-agent-port",
        "dashboard-agent-grpc-port",
        "dashboard-agent-listen-port",
        "metrics-export-port",
        "min-worker-port",
        "max-worker-port",
    )
]
_STORE = ["--object-store-memory=200000000", "--disable-usage-stats"]


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A running cluster: the environment of drivers, and how many seconds passed until the nodes were registered."""

    environment: dict[str, str]
    seconds: float


@contextmanager
def started(setting: Setting, programs: Path, *, workers: int, head_cpus: int) -> Iterator[RayCluster]:
    """Run a head with this many CPUs and nodes with one CPU each inside the context. RunFailedError if one does not start.

    `ray start` returns when the node is registered. All nodes are started at once.
    """
    mark = secrets.token_hex(8)
    folder = Path(tempfile.mkdtemp(prefix="cs-ray-", dir="/tmp"))  # short: Ray's sockets lie in it
    (folder / "token").write_text(secrets.token_hex(32))
    environment = {
        **setting.environment,
        _MARK: mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
    }
    ray, address = str(programs / "ray"), f"127.0.0.1:{free_port()}"
    head = [ray, "start", "--head", f"--port={address.rpartition(':')[2]}", f"--num-cpus={head_cpus}"]
    head += [f"--dashboard-port={free_port()}", f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}/head"]
    nodes = [
        [ray, "start", f"--address={address}", "--num-cpus=1", f"--temp-dir={folder}/{number}", *_STORE, *_PORTS]
        for number in range(workers)
    ]
    try:
        began = time.monotonic()
        run_together([[*head, *_STORE, *_PORTS]], folder=setting.folder, environment=environment)
        run_together(nodes, folder=setting.folder, environment=environment)
        seconds = time.monotonic() - began
        yield RayCluster({**environment, "RAY_ADDRESS": address}, seconds)
    finally:
        _end(mark)
        shutil.rmtree(folder, ignore_errors=True)


def _end(mark: str) -> None:
    ours = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    for process in ours:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(ours, timeout=30)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
