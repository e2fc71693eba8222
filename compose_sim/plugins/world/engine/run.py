"""Run ranks of a large world with the Python of the nodes, in a process with limits of time, memory and output."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compose_sim.assets import node_code
from compose_sim.core.plan.model import Plan, Program
from compose_sim.engine.project_files import read_project_file
from compose_sim.engine.subprocesses import bounded_output_of
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.world.core.world import PlannedWorld, planned_world

_PATIENCE_S, _SAMPLER_S = 300, 120
_NEEDS_GPU = re.compile("cuda|nvidia", re.IGNORECASE)
_EMULATED = "COMPOSESIM_EMULATED_GPUS"  # per node
_MOST_OUTPUT, _MOST_RESULT = 4 << 20, 64 << 20


def run_ranks(
    plan: Plan, program: Program, *, world: int, per_node: int, ranks: Sequence[int], most_bytes: int
) -> PlannedWorld:
    """Run the script as these ranks until each has made two optimizer steps, and return what they did."""
    if plan.image != "host" or plan.recipe != "ddp" or program.is_command:
        raise SpecError(
            "--world runs the script with this machine's Python: not in an image, nor with another recipe",
            hint="composesim plan --world 1024 --image host train.py",
        )
    found = _result(plan, program, world=world, per_node=per_node, ranks=ranks, most_bytes=most_bytes)
    error = next((text for each in found["ranks"] if _NEEDS_GPU.search(text := each.get("error", ""))), "")
    if error:
        raise SpecError(
            "--world has no GPU for the script, not even an emulated one",
            evidence=error,
            hint="composesim up --nodes 2 --gpus emulated runs the script for real",
        )
    return planned_world(world, per_node, found)


def _result(
    plan: Plan,
    program: Program,
    *,
    world: int,
    per_node: int,
    ranks: Sequence[int],
    most_bytes: int,
) -> dict[str, Any]:
    """Return what the ranks wrote. They have no GPU, not even an emulated one, of which fake tensors know nothing."""
    words = ["-m", program.target] if program.is_module else [program.target]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        settings = {
            "world": world,
            "per_node": per_node,
            "ranks": list(ranks),
            "folder": folder,
            "most_seconds": _PATIENCE_S,
            "most_bytes": most_bytes,
            "sampler_seconds": _SAMPLER_S,
        }
        own = {name: value for name, value in plan.nodes[0].environment.items() if name != _EMULATED}
        role = [plan.python, str(node_code() / "__main__.py"), "world-ranks", json.dumps(settings)]
        _, output = bounded_output_of(
            [*role, *words, *program.arguments],
            timeout_s=_PATIENCE_S + _SAMPLER_S + 60,
            most_bytes=_MOST_OUTPUT,
            most_memory_bytes=None,
            folder=program.folder,
            variables={
                **plan.environment,
                **own,
                "COMPOSESIM_SHARED": folder,
                "TMPDIR": folder,  # a project in /tmp must not count as temporary
            },
        )
        try:
            result = read_project_file(Path(folder) / "result.json", Path(folder), size=_MOST_RESULT)
            found: dict[str, Any] = json.loads(result)
        except (OSError, ValueError) as error:
            last = [line for line in output.splitlines() if line.strip()][-3:]
            raise ComposesimError(
                f"the ranks left no result: {error}",
                evidence="\n".join(last),
                hint="composesim up --nodes 2 runs the script for real",
            ) from error
    return found
