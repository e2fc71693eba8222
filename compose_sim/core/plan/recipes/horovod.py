"""How does Horovod start on a cluster? horovodrun, on the master, reaches each node by ssh, as it does on real hosts.

The keys are made for the run and stay in memory (`node/frameworks/horovod/ssh.py`).
Horovod's last release is of 2023: legacy, and still in use.
"""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.plan.recipes import Cluster, driver_commands
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.units import parse_bytes
from compose_sim.errors import SpecError

EMULATES_GPUS = False  # its CUDA calls are its own, behind torch's back
RUNS_COMMANDS = False
DRIVEN = True
PACKAGES: Mapping[str, str] = {"horovod": "0.28", "torch": "2.0"}
EXAMPLE = "templates/examples/horovod_digits.py"
OPTIONS: Mapping[str, str] = {
    "timeline": "Record Horovod's timeline, and print how much time went into computing, reducing and waiting.",
    "fusion-threshold": "Size up to which Horovod reduces tensors together, such as 64m; 0 turns this off.",
    "cycle-time": "Milliseconds between two rounds of Horovod's reductions, such as 1.",
    "mpi": "Run Horovod over MPI instead of gloo.",
}
FLAGS: Mapping[str, str] = {"timeline": "", "fusion-threshold": "SIZE", "cycle-time": "MS", "mpi": ""}
EXIT_CODES: Mapping[int, str] = {
    1: "horovodrun says why above",
    90: "something is missing in the image",
    91: "Horovod is too old",
    92: "the script cannot be read",
    93: "a node cannot be reached",
}
_SWITCH = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


def launcher(spec: ClusterSpec) -> str:
    """`hosted`: ranks start when horovodrun asks for them. SpecError where another one was asked for."""
    if "launcher" in spec.model_fields_set:
        raise SpecError(
            f"launcher '{spec.launcher}' starts ranks itself, and recipe 'horovod' leaves that to horovodrun",
            hint="leave --launcher out",
        )
    return "hosted"


def master_command(cluster: Cluster) -> tuple[str, ...]:
    """The head, with our driver of horovodrun. SpecError for an option that makes no sense, or an engine that has no hosts."""
    if not cluster.contained:
        raise SpecError(
            "recipe 'horovod' needs the docker engine: horovodrun reaches nodes by ssh, as hosts of their own",
            hint="composesim up --engine docker …, or without composesim: horovodrun -np 4 python train.py",
        )
    return driver_commands.master_command(
        cluster, role_words(cluster.folder, "horovod-driver", *_driver_options(cluster.spec))
    )


def node_command(cluster: Cluster) -> tuple[str, ...]:
    """The node's agent, then after `--` what each rank runs."""
    program = cluster.program
    words = (*(("-m",) if program.is_module else ()), program.target, *program.arguments)
    return driver_commands.node_command(cluster, launcher(cluster.spec), words)


def environment(cluster: Cluster) -> Mapping[str, str]:
    """What nodes import before the first rank is asked for."""
    return {"COMPOSESIM_IMPORT": "horovod.torch"}


def ports(cluster: Cluster) -> tuple[PlannedPort, ...]:
    """None."""
    return ()


def _driver_options(spec: ClusterSpec) -> tuple[str, ...]:
    slots = [node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs]
    words = [
        "--slots",
        ",".join(map(str, slots)),
        "--ranks",
        str(sum(slots[: spec.initial_node_count])),
        "--least",
        PACKAGES["horovod"],
    ]
    uses_mpi = _switch(spec, "mpi")
    if spec.elastic_range:
        if uses_mpi:
            raise SpecError(
                "--elastic and --mpi exclude each other: Horovod is elastic over gloo only", hint="leave --mpi out"
            )
        fewest, most = (sum(sorted(slots)[:count]) for count in spec.elastic_range)
        words += ["--elastic", f"{fewest}:{most}"]
    words += ["--mpi"] if uses_mpi else []
    words += ["--timeline"] if _switch(spec, "timeline") else []
    if "fusion-threshold" in spec.options:
        words += ["--fusion-threshold", str(_bytes(spec.options["fusion-threshold"]))]
    if "cycle-time" in spec.options:
        words += ["--cycle-time", f"{_milliseconds(spec.options['cycle-time']):g}"]
    return tuple(words)


def _switch(spec: ClusterSpec, name: str) -> bool:
    text = spec.options.get(name, "off")
    if text.lower() not in _SWITCH:
        raise SpecError(f"option '{name}' is '{text}', and can be on or off", hint=f"--{name}")
    return _SWITCH[text.lower()]


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise SpecError(f"option 'fusion-threshold': {error}", hint="--fusion-threshold 64m") from None


def _milliseconds(text: str) -> float:
    try:
        value = float(text.removesuffix("ms"))
    except ValueError:
        value = -1.0
    if not 0 < value < 60_000:
        raise SpecError(f"option 'cycle-time' is '{text}', and is a number of milliseconds", hint="--cycle-time 1")
    return value
