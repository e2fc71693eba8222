"""Measure how nodes share GPUs: one run for each mode and number of nodes, and a table of all."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.bench.gpu_run import require_inventory, run_on_gpus
from compose_sim.cli.console import echo, print_json, print_table, say
from compose_sim.core.doctor.gpu_bench_table import HEADER, Sample, sample_of, svg_plot, table_rows, text_plot
from compose_sim.core.host.gpus import Inventory
from compose_sim.core.plan.gpus.sharing import why_no_mps
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import ComposesimError


def bench_gpu(counts: str, plot: Path | None, *, as_json: bool) -> None:
    """Measure, print the table, and plot it. The exit code is 1 if no run gave results, and 4 without a GPU."""
    inventory = require_inventory("bench --gpu")
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
        _, report = run_on_gpus("bench-gpu", inventory, {"nodes": nodes, "share": share})
    except ComposesimError as error:  # such as too little memory; the other runs still get a row
        return Sample(mode=mode, nodes=nodes, problem=error.message)
    return sample_of(mode, nodes, report)
