"""Build values for tests, valid by default: a test only names the fields that matter to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.host.host import DockerFacts, Host, PythonFacts
from compose_sim.core.plan.defaults import default_image
from compose_sim.core.plan.model import Mount, Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.report.report import NodeReport, Report
from compose_sim.core.request.names import RECIPE_NAMES
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.verdict.verdict import EXIT_CODES

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0  # what a test waits for normally takes a second; it may take this long on a shared machine


def a_host(**changes: Any) -> Host:
    """Return a workstation with two cores, Docker, all images, and torch in a virtual environment."""
    values: dict[str, Any] = {
        "name": "workstation",
        "system": "Linux",
        "cpus": 2,
        "memory_bytes": 16 << 30,
        "folder": "/home/ada/project",
        "user_id": 1000,
        "group_id": 1000,
        "user_name": "ada",
        "python": PythonFacts(
            executable="/home/ada/venv/bin/python",
            prefixes=("/home/ada/venv", "/usr"),
            packages={"torch": "2.13.0"},
        ),
        "docker": DockerFacts(
            available=True,
            reason="Docker Engine 26.1.5 with Compose 2.26.1 answers",
            images=tuple(default_image(recipe) for recipe in RECIPE_NAMES),
        ),
        "system_paths": ("/usr", "/etc/ssl"),
    }
    return Host(**{**values, **changes})


def no_docker(reason: str = "the docker command is not installed") -> DockerFacts:
    """Return a machine without an engine."""
    return DockerFacts(available=False, reason=reason, hint="make engine")


def a_plan(host: Host | None = None, *, run: str = "demo", portable: bool = False, **spec: Any) -> Plan:
    """Return the plan of `up --nodes 2 train.py` with changes to the spec."""
    host = host or a_host()
    own = Mount(source=host.folder, target=host.folder)
    cluster = ClusterSpec.model_validate({"script": "train.py", **spec})
    program = Program(target=cluster.script or "train.py", arguments=cluster.args, folder=host.folder, mounts=(own,))
    return make_plan(
        cluster, host, run=run, run_folder="/home/ada/project/.composesim/runs/demo", program=program, portable=portable
    )


def a_report(**changes: Any) -> Report:
    """Return the report of a run of two nodes that passed, with changes."""
    values: dict[str, Any] = {
        "run": "demo",
        "engine": "local",
        "recipe": "ddp",
        "verdict": "passed",
        "exit_code": EXIT_CODES[changes.get("verdict", "passed")],
        "world_size": 2,
        "nodes": tuple(NodeReport(name=f"node-{number}", ranks=(number,), exit_code=0) for number in range(2)),
        "program": "train.py",
    }
    return Report(**{**values, **changes})


def an_event(kind: str, t: float = 0.0, *, rank: int | None = None, node: str | None = None, **data: Any) -> Event:
    """Return an event of rank `rank`, on the node of the same number unless another is named."""
    if node is None and rank is not None:
        node = f"node-{rank}"
    return Event(t=t, kind=kind, node=node, rank=rank, generation=0, data=data)
