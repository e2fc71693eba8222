"""Measure a link: run two nodes with a script that sends as much as it can."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from compose_sim import assets
from compose_sim.app.builtin_run import run_builtin
from compose_sim.cli.console import print_json, print_table, say
from compose_sim.core.network.links import TOLERANCE, arguments, compare, parse_shape
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import EngineError

_TIMEOUT_S = 180.0  # only a link that loses many packets needs this long
HEADER = ("between two nodes", "wanted", "measured", "of it")


def bench_link(text: str, *, as_json: bool) -> None:
    """Start two nodes with this link, measure it, and exit with 0 if everything is within 10 %, else with 1."""
    try:
        shape = parse_shape(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--link") from None
    script = assets.root() / "templates" / "bench" / "link.py"
    spec = ClusterSpec(
        nodes=2,
        engine="docker",
        launcher="env",
        gpus="none",
        link=(text,),
        timeout=_TIMEOUT_S,
        script=str(script),
        args=arguments(shape),
    )
    session, report = run_builtin("bench-link", spec)
    try:
        measured = compare(shape, report.metrics)
    except KeyError:
        raise EngineError(
            f"the link '{text}' could not be measured: the run '{session.name}' {report.verdict}",
            evidence=(report.cause.traceback or report.cause.message) if report.cause else "",
            hint=f"composesim report --run {session.name}",
        ) from None
    near = all(each.is_near for each in measured)
    if as_json:
        values = [{**asdict(each), "is_near": each.is_near} for each in measured]
        print_json({"schema_version": 1, "link": text, "run": session.name, "is_near": near, "measured": values})
    else:
        print_table(HEADER, [each.row for each in measured])
        if not near:
            say(f"The link is not within {TOLERANCE:.0%} of the requested shape: is this machine busy?")
    sys.exit(0 if near else 1)
