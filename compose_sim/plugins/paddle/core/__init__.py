"""Start PaddlePaddle scripts with paddle.distributed.launch, whose nodes meet on the first node of each round.

composesim handles failures: it stops the ranks of all nodes, and starts another round if `--max-restarts` or `--elastic` allow it.
Paddle's own restarts (`--max_restart`) are off, because they need an etcd.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from compose_sim.core.plan.recipes import (
    PYTHON_BASE,
    ClusterLayout,
    Contents,
    Framework,
    no_ports,
    refuse_launcher,
    rendezvous_commands,
)
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # GPUs are emulated in torch
RUNS_COMMANDS = False
DRIVEN = False
PACKAGES: Mapping[str, str] = {"paddlepaddle": "3.0"}
EXAMPLE = str(PurePosixPath(__file__).parents[1] / "templates" / "examples" / "paddle_digits.py")
IMAGE = Contents(
    base=PYTHON_BASE,
    torch=False,
    frameworks=(Framework(name="paddle", module="paddle"),),
    system_packages=("libgomp1",),  # unlike torch's, Paddle's wheel has no OpenMP
)
OPTIONS: Mapping[str, str] = {}
EXIT_CODES: Mapping[int, str] = {}

ports = no_ports
_PORTS_PER_NODE = 99  # Paddle chooses the ports of its launcher and its ranks among them


def launcher(spec: ClusterSpec) -> str:
    """Return `paddle`; raise SpecError for a launcher or a store of torch."""
    refuse_launcher(spec, "paddle.distributed.launch starts the ranks")
    if spec.master != "service":
        raise SpecError(
            f"--master '{spec.master}' does not apply to recipe 'paddle': Paddle's launcher brings its own store",
            hint="leave --master out",
        )
    return "paddle"


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the rendezvous master without a store."""
    return rendezvous_commands.master_command(cluster, serves_store=False)


def node_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the program of each rank."""
    return rendezvous_commands.node_command(cluster, launcher(cluster.spec), first_rank_listens=True)


def environment(cluster: ClusterLayout) -> Mapping[str, str]:
    """Return the ports that Paddle may use: in containers those after MASTER_PORT, else any free ones."""
    first = cluster.store_port + 1
    return {"PORT_RANGE": f"{first}:{first + _PORTS_PER_NODE}"} if cluster.contained else {}
