"""What does `composesim bench` do? It measures whether what is simulated is what was asked for."""

from __future__ import annotations

from pathlib import Path

import click

from compose_sim.cli.bench.gpu import bench_gpu
from compose_sim.cli.bench.link import bench_link
from compose_sim.cli.run_lookup import json_option


@click.command("bench")
@click.option(
    "--link",
    is_flag=False,
    flag_value="1gbit",
    metavar="[SHAPE]",
    help="The link between two nodes: bandwidth, delay and loss.  [1gbit where none is named]",
)
@click.option("--gpu", is_flag=True, help="Training steps and all-reduces of nodes that share this machine's GPUs.")
@click.option("--nodes", default="1,2,4,8,16", show_default=True, metavar="N,N…", help="With --gpu: numbers of nodes.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="With --gpu: draw it as SVG."
)
@json_option
def command(link: str | None, gpu: bool, nodes: str, plot: Path | None, as_json: bool) -> None:
    """Measure on nodes of composesim's own. Exit code 1: a link not within 10 % of what was wanted, or no GPU run passed."""
    if gpu and link is None:
        bench_gpu(nodes, plot, as_json=as_json)
    elif link is not None and not gpu:
        bench_link(link, as_json=as_json)
    else:
        raise click.UsageError("say what to measure: composesim bench --link 100mbit, or composesim bench --gpu")
