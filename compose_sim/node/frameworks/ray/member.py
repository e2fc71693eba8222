"""What runs on a node of a Ray cluster? `ray start --address`, as soon as the head answers, until it is stopped.

ray_member.py --cpus 0,4 --memory 0,0 --shm BYTES --share NODES [--free-ports] [--patience SECONDS]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from ...shared import process
from ...shared.installed import Unfit
from . import start

_PAUSE_S = 0.05
_SLOW_S = 15.0
_NOT_STARTED = 75  # sysexits.h: a failure that may pass
_STOPS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Watch over Ray's own process, and show its last words where it ends by itself."""
    options = _options(arguments)
    try:
        start.check_ray()
        folder = start.make_folder(os.environ["COMPOSESIM_NODE"], shared=options.free_ports)
    except (Unfit, start.Failed, OSError) as problem:
        print(f"composesim: {problem}", file=sys.stderr)
        return 1
    said, ours, deadline = folder / "start.log", os.getpid(), time.monotonic() + options.patience
    stopped: list[int] = []
    handlers = {number: signal.signal(number, lambda it, _: stopped.append(it)) for number in _STOPS}
    while True:
        for left in folder.iterdir():  # of this node's earlier life, or of a start that failed
            shutil.rmtree(left, ignore_errors=True)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            process.die_with(ours)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            return _become(options, folder, said)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if stopped:
            break
        print(start.last_words(said), file=sys.stderr)
        # A raylet gives its agents 15 s to start, and dies where a busy machine takes longer: the next one may have it easier.
        now = time.monotonic()
        if code != _NOT_STARTED or now > deadline or now - began < _SLOW_S:
            break
        print("composesim: once more", file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


def _become(options: argparse.Namespace, folder: Path, said: Path) -> int:
    """Ray's node, in a process of its own; the exit code of one that could not be."""
    with contextlib.suppress(ImportError):  # which ray start says again
        import ray.scripts.scripts  # noqa: F401 - the better part of a second, while the head starts
    address = f"{socket.gethostbyname(os.environ['MASTER_ADDR'])}:{os.environ['MASTER_PORT']}"
    number = int(os.environ["COMPOSESIM_NODE_RANK"])
    memory = start.memory_of(options.memory[number], options.share)
    store = start.object_store_of(memory, options.shm)
    words = [
        f"--address={address}",
        f"--node-name={os.environ['COMPOSESIM_NODE']}",
        f"--num-cpus={options.cpus[number] or start.cpus_of(options.share)}",
        f"--num-gpus={start.gpus_here()}",
        f"--memory={max(memory - store, 0)}",
        f"--object-store-memory={store}",
        *start.port_words(free=options.free_ports),
        *(() if options.free_ports else (f"--node-ip-address={start.own_address()}",)),
        "--block",
    ]
    try:
        _await_head(address, options.patience)
    except Exception as problem:  # noqa: BLE001 - Ray's client raises other exceptions in other versions
        print(f"composesim: this node did not become one of Ray: {problem}", file=sys.stderr)
        return 1
    try:
        with start.said_to(said):
            start.start(words, folder)
    except start.Failed as problem:
        print(f"composesim: this node did not become one of Ray: {problem}", file=sys.stderr)
        return _NOT_STARTED
    return 1


def _await_head(address: str, patience: int) -> None:
    """Wait until Ray's head counts itself as a node: Ray, if it asked too early, would wait for seconds before it asks again."""
    deadline = time.monotonic() + patience
    host, _, port = address.rpartition(":")
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
            break
        except OSError:
            time.sleep(_PAUSE_S)
    else:
        raise start.Failed(f"Ray's head at {address} did not answer in {patience} s")
    from ray.exceptions import AuthenticationError

    said = ""
    while time.monotonic() < deadline:
        try:
            if any(node.is_head_node for node in start.nodes_of(start.client_of(address))):
                return
        except AuthenticationError:
            raise
        except Exception as error:  # noqa: BLE001 - a head that is starting answers in many ways; the last one is told
            said = f": {error}"
        time.sleep(_PAUSE_S)
    raise start.Failed(f"Ray's head at {address} was not ready in {patience} s{said}")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray-member", description="One node of a Ray cluster.")
    parser.add_argument("--cpus", type=_numbers, required=True, help="CPUs of each node; 0: its share")
    parser.add_argument("--memory", type=_numbers, required=True, help="bytes that each node may take; 0: its share")
    parser.add_argument("--patience", type=int, default=300, help="seconds until the head must answer")
    start.add_options(parser)
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
