"""What does `composesim bench` do? It measures whether what is simulated is what was asked for."""

from __future__ import annotations

import click

from compose_sim.cli.bench_link import bench_link
from compose_sim.cli.select import json_option


@click.command("bench")
@click.option(
    "--link",
    is_flag=False,
    flag_value="1gbit",
    metavar="[SHAPE]",
    help="The link between two nodes: bandwidth, delay and loss.  [1gbit where none is named]",
)
@json_option
def command(link: str | None, as_json: bool) -> None:
    """Measure on nodes of composesim's own, and show what was wanted beside it. Exit code 1: not within 10 %."""
    if link is None:
        raise click.UsageError("say what to measure: composesim bench --link 100mbit")
    bench_link(link, as_json=as_json)
