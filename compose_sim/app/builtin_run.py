"""How does a verb run a script of composesim's own? As any script, by `up`'s own corridor, without its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compose_sim.app.program import new_name
from compose_sim.app.run import run_cluster
from compose_sim.cli.options import Request
from compose_sim.cli.views.live import QuietListener
from compose_sim.core.plan.model import Plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.registry import make_engine
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder


def run_own(name: str, spec: ClusterSpec) -> tuple[Plan, dict[str, Any], RunFolder]:
    """Run it to its end in this folder, named after `name`; the plan, the report, and the run's folder."""
    request = Request(spec=spec, folder=Path.cwd(), dotenv="", dotenv_variables={}, env_files={})
    run = new_name(spec.model_copy(update={"script": name}))
    folder = RunFolder(runs_folder(request.folder) / run)
    plan, host = request.plan(run=run, run_folder=folder.path)
    report = run_cluster(plan, make_engine(plan.engine), folder, host, QuietListener())
    return plan, report, folder
