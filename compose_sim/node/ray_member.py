"""What runs on a node of a Ray cluster? `ray start --address`, as soon as the head answers, until it is stopped.

ray_member.py --cpus 0,4 --memory 0,0 --shm BYTES --share NODES [--free-ports]
"""

from __future__ import annotations

if __name__ == "__main__" and not __package__:
    import as_package  # type: ignore[import-not-found]

    __package__ = as_package.NAME

import argparse
import os
import shutil
import socket
import sys
import time

from . import ray_start

_HEAD_PATIENCE_S = 120.0
_PAUSE_S = 0.05


def main() -> int:
    """Become a node of Ray; the exit code of one that could not."""
    options = _options()
    try:
        ray_start.check_ray()
    except ray_start.Unfit as problem:
        print(f"composesim: {problem}", file=sys.stderr)
        return 1
    from ray.scripts import scripts  # noqa: F401  # a second and a half, while the head starts

    node, number = os.environ["COMPOSESIM_NODE"], int(os.environ["COMPOSESIM_NODE_RANK"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not _answers(host, port):
        print(f"composesim: Ray's head at {host}:{port} did not answer in {_HEAD_PATIENCE_S:.0f} s", file=sys.stderr)
        return 1
    memory = ray_start.memory_of(options.memory[number], options.share)
    store = ray_start.object_store_of(memory, options.shm)
    folder = ray_start.folder_of(node, shared=options.free_ports)
    shutil.rmtree(folder, ignore_errors=True)  # of this node's earlier life
    words = [
        f"--address={socket.gethostbyname(host)}:{port}",
        f"--node-name={node}",
        f"--num-cpus={options.cpus[number] or ray_start.cpus_of(options.share)}",
        f"--num-gpus={ray_start.gpus_here()}",
        f"--memory={max(memory - store, 0)}",
        f"--object-store-memory={store}",
        *ray_start.port_words(free=options.free_ports),
        *(() if options.free_ports else (f"--node-ip-address={ray_start.own_address()}",)),
        "--block",
    ]
    ray_start.start(words, folder)
    return 1


def _answers(host: str, port: int) -> bool:
    """Wait until something listens there."""
    deadline = time.monotonic() + _HEAD_PATIENCE_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=5.0).close()
            return True
        except OSError:
            time.sleep(_PAUSE_S)
    return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_member.py", description="One node of a Ray cluster.")
    parser.add_argument("--cpus", type=_numbers, required=True, help="CPUs of each node; 0: its share")
    parser.add_argument("--memory", type=_numbers, required=True, help="bytes that each node may take; 0: its share")
    ray_start.add_options(parser)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
