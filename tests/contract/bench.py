"""Start runs on an engine for tests, with small Python programs in place of the nodes' agents, so that no torch is needed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from compose_sim.app.documents import write_documents
from compose_sim.core.faults.kind import Action
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from tests.builders import PATIENCE_S

MASTER = """
import json, os, signal
event = {"t": 0, "kind": "master-started", "data": {"port": 1}}
with open(os.environ["COMPOSESIM_DIR"] + "/events/master.jsonl", "a") as file:
    file.write(json.dumps(event) + "\\n")
signal.pause()
"""
WAITS = "import signal; signal.pause()"
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    signal.pause()
"""
COUNTS = """
import os, time
with open(os.path.join(os.environ["COMPOSESIM_SHARED"], os.environ["COMPOSESIM_NODE"]), "a", buffering=1) as file:
    while True:
        print(file=file)
        time.sleep(0.001)
"""


@dataclass
class Bench:
    """One engine, and the runs that a test has started on it."""

    engine: Engine
    project: Path
    runs: list[str] = field(default_factory=list)

    def start(
        self, *programs: str, command: tuple[str, ...] | None = None, master: str = MASTER, initial_node_count: int = 0
    ) -> Plan:
        """Start a run with one node for each Python program (the first ones begin), or with one node for a command."""
        host, folder = self._host(), self._folder()
        plan = self._plan(host, folder, nodes=len(programs) or 1)
        commands = [command] if command else [(plan.python, "-c", program) for program in programs]
        nodes = tuple(replace(node, command=own) for node, own in zip(plan.nodes, commands, strict=True))
        plan = replace(plan, master=replace(plan.master, command=(plan.python, "-c", master)), nodes=nodes)
        plan = replace(plan, initial_node_count=initial_node_count or len(nodes))
        return self._start(plan, host, folder)

    def start_script(self, text: str, **spec: Any) -> Plan:
        """Start a run of a script as `up` would, with composesim's own master and agents."""
        (self.project / "script.py").write_text(text)
        host, folder = self._host(), self._folder()
        return self._start(self._plan(host, folder, **spec), host, folder)

    def do(self, plan: Plan, *acts: Action) -> None:
        """Have the engine perform these, one after another."""
        for act in acts:
            self.engine.perform(plan, RunFolder(runs_folder(self.project) / plan.run), act)

    def counted(self, plan: Plan, node: str) -> int:
        """Return how far a counting node has come."""
        path = runs_folder(self.project) / plan.run / "shared" / node
        return path.stat().st_size if path.exists() else 0

    def ended(self, plan: Plan, *nodes: str) -> dict[str, NodeStatus]:
        """Wait for these nodes, else for all nodes of a run; the master continues until it is stopped."""
        names = set(nodes or (node.name for node in plan.nodes))
        statuses: dict[str, NodeStatus] = {}
        for status in self.engine.exits(plan):
            statuses[status.node] = status
            if names <= statuses.keys():
                break
        return statuses

    def running(self, plan: Plan) -> list[str]:
        return [status.node for status in self.engine.statuses(plan.run) if status.running]

    def _host(self) -> Host:
        """Inspect this machine now: each run takes a subnet."""
        host = inspect_host(self.project, python=sys.executable, with_docker=self.engine.name == "docker")
        assert host.python is not None
        # Which no program here asks for.
        return replace(host, python=replace(host.python, packages={"torch": "2.13.0"}))

    def _folder(self) -> RunFolder:
        return RunFolder(runs_folder(self.project) / f"contract-{uuid4().hex[:8]}")

    def _plan(self, host: Host, folder: RunFolder, **values: Any) -> Plan:
        spec = ClusterSpec.model_validate({"engine": self.engine.name, **values})
        program = Program(target="script.py", folder=str(self.project))
        return make_plan(spec, host, run=folder.name, run_folder=str(folder.path), program=program)

    def _start(self, plan: Plan, host: Host, folder: RunFolder) -> Plan:
        self.runs.append(plan.run)
        folder.claim()
        folder.clear(host.user_id, host.group_id, containers=plan.writers)
        folder.write_plan(plan)
        image = self.engine.prepare(plan, lambda text: None)
        write_documents(plan, folder.path, image=image)
        self.engine.start(plan, folder)
        return plan


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail if it does not for a long time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
