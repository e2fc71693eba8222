"""Measure whether links and GPUs behave as requested."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.bench.gpu import bench_gpu
from compose_sim.cli.bench.link import bench_link
from compose_sim.cli.run_lookup import FILE, json_option


@click.command("bench")
@click.option(
    "--link",
    is_flag=False,
    flag_value="1gbit",
    metavar="[SHAPE]",
    help="The link between two nodes: bandwidth, delay and loss.  [default without SHAPE: 1gbit]",
)
@click.option("--gpu", is_flag=True, help="Training steps and all-reduces of nodes that share this machine's GPUs.")
@click.option("--nodes", default="1,2,4,8,16", show_default=True, metavar="N,N…", help="With --gpu: numbers of nodes.")
@click.option("--plot", type=FILE, help="With --gpu: draw it as SVG.")
@json_option
def command(link: str | None, gpu: bool, nodes: str, plot: Path | None, as_json: bool) -> None:
    """Run a benchmark. The exit code is 1 if the link is not within 10 % of the requested shape, or no GPU run passed."""
    if gpu and link is None:
        bench_gpu(nodes, plot, as_json=as_json)
    elif link is not None and not gpu:
        bench_link(link, as_json=as_json)
    else:
        raise click.UsageError("say what to measure: composesim bench --link 100mbit, or composesim bench --gpu")
