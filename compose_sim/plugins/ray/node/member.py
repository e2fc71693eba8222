"""Run `ray start --address` on a node as soon as the head answers, until it is stopped.

Arguments of the role `ray-member`: --cpus 0,4 --memory 0,0 --shm BYTES --share NODES [--free-ports] [--patience SECONDS]
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

from ....node.master.driver_membership import StartError
from ....node.shared import process
from ....node.shared.master_protocol import connect
from . import start

_PAUSE_S = 0.05
_SLOW_S = 15.0
_NOT_STARTED = 75  # sysexits.h: a temporary failure
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str]) -> int:
    """Supervise Ray's process, and print the last lines of the log if it ends by itself."""
    options = _options(arguments)
    try:
        start.require_ray()
        folder = start.make_folder(os.environ["COMPOSESIM_NODE"], shared=options.free_ports)
    except (StartError, start.RayError, OSError) as error:
        hint = f"\nTry: {error.hint}" if isinstance(error, StartError) else ""
        print(f"composesim: {error}{hint}", file=sys.stderr)
        return 1
    log, parent, deadline = folder / "start.log", os.getpid(), time.monotonic() + options.patience
    stopped: list[int] = []
    handlers = {number: signal.signal(number, lambda received, _: stopped.append(received)) for number in _STOP_SIGNALS}
    while True:
        for leftover in folder.iterdir():  # from before this node was restarted, or from a failed start
            shutil.rmtree(leftover, ignore_errors=True)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            process.die_with(parent)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            return _run_node(options, folder, log)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if stopped:
            break
        print(start.last_lines(log), file=sys.stderr)
        # A raylet gives its agents 15 s to start. On a busy machine they may take longer, and it exits: start another one.
        now = time.monotonic()
        if code != _NOT_STARTED or now > deadline or now - began < _SLOW_S:
            break
        print("composesim: Ray did not start in time; trying again", file=sys.stderr, flush=True)
    return process.shell_status(code)


def _run_node(options: argparse.Namespace, folder: Path, log: Path) -> int:
    """Run Ray's node in this process; returns the exit code if that fails."""
    with contextlib.suppress(ImportError):  # `ray start` reports it
        import ray.scripts.scripts  # noqa: F401 - this takes most of a second, while the head starts
    number = int(os.environ["COMPOSESIM_NODE_RANK"])
    memory = start.memory_of(options.memory[number], options.share)
    store = start.object_store_of(memory, options.shm)
    try:
        address = _wait_for_head(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), options.patience)
    except Exception as error:  # noqa: BLE001 - Ray's client raises other exceptions in other versions
        print(f"composesim: this node cannot join the Ray cluster: {error}", file=sys.stderr)
        return 1
    arguments = [
        f"--address={address}",
        f"--node-name={os.environ['COMPOSESIM_NODE']}",
        f"--num-cpus={options.cpus[number] or start.cpus_of(options.share)}",
        f"--num-gpus={start.visible_gpus()}",
        f"--memory={max(memory - store, 0)}",
        f"--object-store-memory={store}",
        *start.port_arguments(free=options.free_ports),
        *(() if options.free_ports else (f"--node-ip-address={start.own_address()}",)),
        "--block",
    ]
    try:
        with start.stdout_to(log):
            start.start(arguments, folder)
    except start.RayError as error:
        print(f"composesim: this node cannot join the Ray cluster: {error}", file=sys.stderr)
        return _NOT_STARTED
    return 1


def _wait_for_head(host: str, port: int, patience: int) -> str:
    """Return the address of Ray's head once it lists itself as a node: `ray start` would wait for seconds before a retry."""
    address = f"{socket.gethostbyname(host)}:{port}"
    deadline = time.monotonic() + patience
    connect(host, port, patience).close()
    from ray.exceptions import AuthenticationError

    reason = ""
    while time.monotonic() < deadline:
        try:
            if any(node.is_head_node for node in start.nodes_of(start.client_of(address))):
                return address
        except AuthenticationError:
            raise
        except Exception as error:  # noqa: BLE001 - a head that is starting fails in many ways; report the last one
            reason = f": {error}"
        time.sleep(_PAUSE_S)
    raise start.RayError(f"Ray's head at {address} was not ready after {patience} s{reason}")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray-member", description="One node of a Ray cluster.")
    parser.add_argument("--cpus", type=_numbers, required=True, help="CPUs of each node; 0: an equal share")
    parser.add_argument(
        "--memory", type=_numbers, required=True, help="bytes of memory of each node; 0: an equal share"
    )
    parser.add_argument("--patience", type=int, default=300, help="seconds to wait for the head")
    start.add_options(parser)
    return parser.parse_args(arguments)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
