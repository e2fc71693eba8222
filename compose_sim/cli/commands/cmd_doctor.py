"""Check this machine, and suggest fixes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compose_sim.cli.bench.gpu_doctor import prove_gpus
from compose_sim.cli.console import MARKS, echo, print_json
from compose_sim.cli.run_lookup import json_option
from compose_sim.core.doctor.machine_checks import Check, diagnose, is_fit
from compose_sim.engine.lifetime.doctor_facts import inspect_machine
from compose_sim.errors import EnvironmentMissingError


@click.command("doctor")
@click.option(
    "--gpu", is_flag=True, help="Run on the GPUs to prove that nodes get them, share them, and communicate by NCCL."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of that run.  [default: one per GPU, 2 to 8]"
)
@json_option
def command(gpu: bool, nodes: int | None, as_json: bool) -> None:
    """Check this machine. The exit code is 4 if no run is possible; a ! marks what only some runs need."""
    if nodes and not gpu:
        raise click.UsageError("--nodes is for the run of --gpu: composesim doctor --gpu --nodes 4")
    checks = prove_gpus(nodes) if gpu else diagnose(inspect_machine(Path.cwd()))
    fit = is_fit(checks)
    if as_json:
        print_json({"schema_version": 1, "fit": fit, "checks": [check.to_dict() for check in checks]})
    else:
        for check in checks:
            _print(check)
    sys.exit(0 if fit else EnvironmentMissingError.exit_code)


def _print(check: Check) -> None:
    mark, color = MARKS[check.status]
    echo(f"{click.style(mark, fg=color, bold=True)} {check.id:<10} {check.detail}")
    if check.hint:
        echo(f"  {'':<10} Try: {check.hint}")
