"""Estimate the memory of a rank with the Python of the nodes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

from compose_sim.assets import node_code
from compose_sim.core.plan.limits import RankMemory, rank_memory
from compose_sim.core.plan.model import Plan, Program
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import ComposesimError, SpecError

_MARK = "composesim-memory-estimate "


def estimate_memory(plan: Plan, program: Program) -> RankMemory:
    """Run the script of a plan until its second optimizer step, with tensors that hold no data; ComposesimError if there is none."""
    if plan.image != "host" or plan.recipe != "ddp" or program.is_command:
        raise SpecError(
            "--peak-memory runs the script with this machine's Python: not in an image, nor with another recipe",
            hint="composesim plan --peak-memory --image host train.py",
        )
    words = ["-m", program.target] if program.is_module else [program.target]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as shared:
        folders = {"COMPOSESIM_SHARED": shared, "TMPDIR": shared}  # a project in /tmp must not count as temporary
        variables = {**plan.environment, **plan.nodes[0].environment, **_launched(plan), **folders}
        argv = [plan.python, str(node_code() / "__main__.py"), "memory-estimate", *words, *program.arguments]
        _, output = try_output_of(argv, folder=program.folder, variables=variables)
    found = [line for line in output.splitlines() if line.startswith(_MARK)]
    result: dict[str, Any] = json.loads(found[-1].removeprefix(_MARK)) if found else {}
    if problem := result.get("problem") or ("" if found else "the script ended its process"):
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith(_MARK)]
        raise ComposesimError(
            f"the memory cannot be estimated: {problem}",
            evidence="\n".join(lines[-3:]),
            hint="measure it in a run: composesim up prints the peak memory of each node",
        )
    return rank_memory(result)


def _launched(plan: Plan) -> Mapping[str, str]:
    node = plan.nodes[0]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(node.nproc),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
