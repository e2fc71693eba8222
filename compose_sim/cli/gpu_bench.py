"""Run nodes on this machine's GPUs: for `doctor --gpu`, prove that nodes get them; for `bench --gpu`, measure how nodes share them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from compose_sim import assets
from compose_sim.app.builtin_run import run_builtin
from compose_sim.app.session import Session
from compose_sim.cli.console import echo, print_json, print_table, say
from compose_sim.core.doctor.gpu_bench_table import HEADER, Sample, sample_of, svg_plot, table_rows, text_plot
from compose_sim.core.doctor.gpu_messages import read_nccl_log
from compose_sim.core.doctor.gpu_proof import findings
from compose_sim.core.doctor.machine_checks import Check
from compose_sim.core.host.host import Inventory
from compose_sim.core.plan.gpus.assignment import eligible_gpus, require_gpus
from compose_sim.core.plan.gpus.gpu_plan import why_no_mps
from compose_sim.core.report.report import Report
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.gpus import inspect_gpus
from compose_sim.engine.run_folder.node_files import files_of_nodes
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import ComposesimError

_TIMEOUT_S = 300.0
_MIN_NODES, _MAX_NODES = 2, 8


def prove_gpus(nodes: int | None) -> tuple[Check, ...]:
    """Run and judge; raise EnvironmentMissingError without a GPU. By default there is one node per GPU, and at least two."""
    inventory = _require_inventory("doctor --gpu")
    count = nodes or min(max(_MIN_NODES, len(inventory.gpus)), _MAX_NODES)
    session, report = _run_on_gpus("doctor-gpu", inventory, {"nodes": count})
    return findings(session.plan, report, read_nccl_log(_lines_of_ranks(session)))


def bench_gpu(counts: str, plot: Path | None, *, as_json: bool) -> None:
    """Measure, print the table, and plot it. The exit code is 1 if no run gave results, and 4 without a GPU."""
    inventory = _require_inventory("bench --gpu")
    try:
        numbers = sorted({int(word) for word in counts.split(",")})
    except ValueError:
        raise click.BadParameter(
            f"'{counts}' is not a list of node counts, such as 1,2,4,8", param_hint="--nodes"
        ) from None
    no_mps = why_no_mps(inventory.gpus[0], inventory)
    if no_mps:
        say(f"Without MPS: {no_mps}.")
    samples: list[Sample] = []
    for count in numbers:
        shared = count > len(inventory.gpus)
        for mode in ("timeslice",) if shared and no_mps else ("mps", "timeslice") if shared else ("own",):
            say(f"{count} nodes, {mode} …")
            samples.append(_measure(inventory, mode, count))
    if as_json:
        print_json({"schema_version": 1, "gpus": len(inventory.gpus), "samples": [each.to_dict() for each in samples]})
    else:
        print_table(HEADER, table_rows(samples))
        echo()
        for line in text_plot(samples):
            echo(line)
    if plot:
        write_file(plot, svg_plot(samples))
    sys.exit(0 if any(each.step_ms for each in samples) else 1)


def _measure(inventory: Inventory, mode: str, nodes: int) -> Sample:
    share = "auto" if mode == "own" else mode
    try:
        _, report = _run_on_gpus("bench-gpu", inventory, {"nodes": nodes, "share": share})
    except ComposesimError as error:  # such as too little memory; the other runs still get a row
        return Sample(mode=mode, nodes=nodes, problem=error.message)
    return sample_of(mode, nodes, report)


def _require_inventory(asked: str) -> Inventory:
    """Return the GPUs that `auto` would use; raise EnvironmentMissingError if there is none."""
    inventory = inspect_gpus()
    require_gpus(inventory, asked)
    return replace(inventory, gpus=eligible_gpus(inventory)[0])


def _run_on_gpus(name: str, inventory: Inventory, spec: Mapping[str, Any]) -> tuple[Session, Report]:
    """Run the script on these GPUs with these values of the spec."""
    script = str(assets.root() / "templates" / "bench" / "gpu.py")
    gpus = [gpu.uuid for gpu in inventory.gpus]  # by name, so that nothing is emulated if they are not available
    values = {"gpus": gpus, "script": script, "timeout": _TIMEOUT_S, "env": {"NCCL_DEBUG": "INFO"}, **spec}
    return run_builtin(name, ClusterSpec.model_validate(values))


def _lines_of_ranks(session: Session) -> Iterator[str]:
    """Yield what all ranks printed, including the lines of NCCL."""
    files = session.folder.files
    for name in files_of_nodes(files, "logs", ".log"):
        yield from files.read_text(name).splitlines()
