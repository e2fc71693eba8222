"""Start Horovod: horovodrun on the master reaches each node by ssh, as on real hosts.

The ssh keys are made for the run and stay in memory (`node/ssh.py`). Horovod is a legacy project: the
last release dates from 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from compose_sim.core.plan.model import HOSTED
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout, Contents, Framework, driver_commands, no_ports, refuse_launcher
from compose_sim.core.plan.recipes.options import option_of, switch
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.text import parse_bytes
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # Horovod calls CUDA without torch
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {"horovod": "0.28", "torch": "2.0"}
EXAMPLE = str(PurePosixPath(__file__).parents[1] / "templates" / "examples" / "horovod_digits.py")
IMAGE = Contents(
    frameworks=(Framework(name="horovod", module="horovod.torch"),),
    system_packages=("openmpi-bin", "openssh-client", "openssh-server"),
    compiled="horovod",
)
OPTIONS: Mapping[str, str] = {
    "timeline": "Record Horovod's timeline and print the time spent computing, reducing and waiting.",
    "fusion-threshold": "Size up to which Horovod reduces tensors together; 0 turns this off.  [example: 64m]",
    "cycle-time": "Milliseconds between two rounds of Horovod's reductions.  [example: 1]",
    "mpi": "Run Horovod over MPI instead of gloo.",
}
FLAGS: Mapping[str, str] = {"timeline": "", "fusion-threshold": "SIZE", "cycle-time": "MS", "mpi": ""}
EXIT_CODES: Mapping[int, str] = {
    1: "see the output of horovodrun above",
    90: "the image lacks something",
    91: "Horovod is too old",
    92: "the script cannot be read",
    93: "a node cannot be reached",
}

ports = no_ports


def launcher(spec: ClusterSpec) -> str:
    """Return `hosted`: ranks start when horovodrun requests them. Raise SpecError if the user chose another launcher."""
    refuse_launcher(spec, "horovodrun starts the ranks")
    return HOSTED


def master_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start horovodrun through our driver; raise SpecError for a wrong option or the local engine."""
    if not cluster.contained:
        raise SpecError(
            "recipe 'horovod' needs the docker engine: horovodrun reaches nodes by ssh",
            hint="composesim up --engine docker …, or without composesim: horovodrun -np 4 python train.py",
        )
    return driver_commands.master_command(
        cluster, role_command(cluster.folder, "horovod-driver", *_driver_options(cluster.spec))
    )


def node_command(cluster: ClusterLayout) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the program of each rank."""
    return driver_commands.node_command(
        cluster, launcher(cluster.spec), driver_commands.program_arguments(cluster.program)
    )


def environment(cluster: ClusterLayout) -> Mapping[str, str]:
    """Return what nodes import before horovodrun requests the first rank."""
    return {"COMPOSESIM_IMPORT": "horovod.torch"}


def _driver_options(spec: ClusterSpec) -> tuple[str, ...]:
    slots, uses_mpi = driver_commands.slots_of(spec), switch(spec, "mpi")
    if spec.elastic_range and uses_mpi:
        raise SpecError("--elastic and --mpi exclude each other: Horovod needs gloo for it", hint="leave --mpi out")
    fewest, most = (sum(sorted(slots)[:count]) for count in spec.elastic_range or (0, 0))
    example = {"expected": "a size such as 64m", "example": "64m"}
    fusion = option_of(spec, "fusion-threshold", lambda text: str(parse_bytes(text)), "", **example)
    example = {"expected": "a number of milliseconds", "example": "1"}
    cycle = option_of(spec, "cycle-time", lambda text: f"{_milliseconds(text):g}", "", **example)
    return (
        *("--slots", ",".join(map(str, slots))),
        *("--ranks", str(sum(slots[: spec.initial_node_count]))),
        *("--least", PACKAGES["horovod"]),
        *(("--elastic", f"{fewest}:{most}") if spec.elastic_range else ()),
        *(("--mpi",) if uses_mpi else ()),
        *(("--timeline",) if switch(spec, "timeline") else ()),
        *(("--fusion-threshold", fusion) if fusion else ()),
        *(("--cycle-time", cycle) if cycle else ()),
    )


def _milliseconds(text: str) -> float:
    value = float(text.removesuffix("ms"))
    if not 0 < value < 60_000:
        raise ValueError(text)
    return value
