"""Read what the job of a run records in the run's folder, and what it says about the nodes (node/slurm/job.py writes it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compose_sim.core.verdict.job_ending import RUNNING
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.engine.slurm.jobs import SlurmJob

MASTER = "master"
_RECORDS = "control/slurm-records"


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return what the job has recorded. The file is opened each time: then a network file system shows what is new."""
    try:
        text = SafeFolder(folder).read_text(_RECORDS)
    except (OSError, UnsafeFileError):
        return []
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_nodes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of each node that was started: its host, since when it runs, and how it exited."""
    nodes: dict[str, dict[str, Any]] = {}
    for record in read_records(folder):
        if record["kind"] == "started":
            nodes[record["node"]] = record
        elif record["kind"] == "exited":
            nodes[record["node"]] = {**nodes.get(record["node"], {}), **record}
    return nodes


def status_of(job: SlurmJob, name: str, node: Mapping[str, Any], ranks: str) -> NodeStatus:
    """Return the status of a node of a job, from its record in `read_nodes`."""
    running = job.state in RUNNING and bool(node) and "exit_code" not in node
    return NodeStatus(
        run=job.run,
        node=name,
        role="master" if name == MASTER else "node",
        running=running,
        exit_code=node.get("exit_code"),
        oom_killed=bool(node.get("oom")),
        ranks=ranks,
        folder=job.folder,
        since=datetime.fromtimestamp(node["t"], UTC).isoformat(timespec="milliseconds") if running else "",
        handle=f"{node['host']}, job {job.job_id}" if running else "",
    )


def exited(run: str, node: str, code: int, *, oom: bool = False) -> NodeStatus:
    """Return the status of a node that has ended."""
    role = "master" if node == MASTER else "node"
    return NodeStatus(run=run, node=node, role=role, running=False, exit_code=code, oom_killed=oom)
