"""A cluster of real processes on 127.0.0.1, without the engine: the master and one agent per node, in their own run
folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compose_sim.core.events.observations import RankObserved, parse_rank
from compose_sim.node.records.script import FeatureOff
from tests.builders import PATIENCE_S

NODE_CODE = Path(__file__).parents[2] / "compose_sim" / "node"


class Cluster:
    """Nodes have numbers; `program` is what follows `--` on a node's command line."""

    def __init__(self, folder: Path, program: Sequence[str], *, launcher: str = "warm", nproc: int = 1) -> None:
        self.folder, self.program, self.launcher, self.nproc = folder, program, launcher, nproc
        self.module = False
        self.cwd = folder
        for name in ("events", "logs", "shared", "debug", "control"):
            (folder / name).mkdir(parents=True)
        (folder / "control" / "secret").write_text(secrets.token_hex(32))
        shutil.copytree(NODE_CODE, folder / "node")  # with its bytecode, as in a run
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            **{"COMPOSESIM_RUN": "test", "COMPOSESIM_DIR": str(folder), "COMPOSESIM_SHARED": str(folder / "shared")},
            **{"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COMPOSESIM_ECHO": "0"},
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_master(self, nodes: int, *options: str) -> None:
        store = ("--store-host", "127.0.0.1", *(("--no-store",) if self.launcher == "env" else ()))
        self.start_process("master", "master", "--nodes", str(nodes), "--port", "0", *store, *options)
        started = self.wait_for(lambda: next(iter(self.events("master", "master-started")), None))
        self.environment["COMPOSESIM_MASTER"] = f"127.0.0.1:{started['data']['port']}"

    def start_node(self, number: int) -> None:
        name = f"node-{number}"
        address = ("--master-address", "127.0.0.1") if self.launcher == "env" else ()
        module = ("--module",) if self.module else ()
        variables = {"COMPOSESIM_NODE_RANK": str(number), "COMPOSESIM_NPROC": str(self.nproc)}
        command = ("agent", "--launcher", self.launcher, *address, *module, "--", *self.program)
        self.start_process(name, *command, **variables)

    def start(self, nodes: int, *options: str) -> Cluster:
        self.start_master(nodes, *options)
        for number in range(nodes):
            self.start_node(number)
        return self

    def exit_codes(self) -> dict[str, int]:
        """Wait for all processes, and return the exit code of the master and of each node."""
        return {name: process.wait(PATIENCE_S) for name, process in self.processes.items()}

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def events(self, node: str, kind: str = "") -> list[dict[str, Any]]:
        file = self.folder / "events" / f"{node}.jsonl"
        text = file.read_text() if file.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        return [event for event in map(json.loads, lines) if not kind or event["kind"] == kind]

    def log(self, rank: int) -> str:
        (file,) = (self.folder / "logs").glob(f"*.{rank}.log")
        return file.read_text()

    def observed(self, rank: int = 0) -> RankObserved:
        """Return what a rank observed; every line must be a record, and no observer may have failed."""
        (file,) = (self.folder / "observations").glob(f"*.{rank}.0.jsonl")
        seen = parse_rank(file.name.split(".")[0], rank, file.read_text().splitlines())
        assert not seen.dropped
        assert not list(seen.of(FeatureOff))
        return seen

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Return the result of `condition` once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError("the condition did not become true")
            time.sleep(0.02)
        return value

    def wait_for_event(self, node: str, kind: str, **data: Any) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((it for it in self.events(node, kind) if data.items() <= it["data"].items()), None)

        event: dict[str, Any] = self.wait_for(found)
        return event

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start_process(self, name: str, role: str, *arguments: str, **variables: str) -> None:
        environment = {**self.environment, "COMPOSESIM_NODE": name, **variables}
        if name in self.processes:  # killed, and started again
            self.processes[name].wait()
        with (self.folder / "logs" / f"{name}.stderr").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(self.folder / "node" / "__main__.py"), role, *arguments],
                env=environment,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
