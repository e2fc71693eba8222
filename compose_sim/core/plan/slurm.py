"""Plan what is different if nodes are those of a Slurm cluster: the job that is submitted, and the checks of the request."""

from __future__ import annotations

import math
import shlex

from compose_sim.core.plan.model import REQUESTED, Choice
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

FIRST_NODE = "%first-node%"  # in place of the master's address, which is known once the job runs
_RECIPES = ("ddp", "exec")
_MIB = 1 << 20
ASSIGNED = "of the cluster"
# Options of sbatch that composesim cannot work with, and why.
_NO_JOB = "sbatch would submit no job"
_OWN_SCRIPT = "composesim submits a script of its own"
_REFUSED = {
    "--requeue": "a job that Slurm starts again would be a second run in the folder of the first",
    "--array": "a run is one job",
    "--comment": "composesim finds its jobs by their comment",
    "--export": "the nodes need the variables that composesim sets",
    "--wait": "sbatch would return only when the job has ended",
    "--wrap": _OWN_SCRIPT,
    **dict.fromkeys(("--test-only", "--help", "--usage", "--version", "-h", "-V"), _NO_JOB),
}
_SHORT = {"-a": "--array", "-W": "--wait"}


def check_slurm(spec: ClusterSpec) -> None:
    """Raise SpecError for what composesim does not do on a cluster."""
    if spec.recipe not in _RECIPES:
        raise SpecError(
            f"recipe '{spec.recipe}' does not run on the slurm engine, which supports {' and '.join(_RECIPES)}",
            hint="composesim up --engine docker …",
        )
    if spec.keep:
        raise SpecError("--keep would hold the nodes of the cluster after the run", hint="leave --keep out")
    if spec.gpus not in ("auto", "none", "emulated") or spec.names_gpus:
        raise SpecError(
            f"Slurm chooses the GPUs of a node; '{spec.gpus}' names some of this machine",
            hint="composesim up --engine slurm --gpus-per-node 1 …",
        )


def submit_options(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the options of `sbatch` for a request. Those of `--sbatch` come last, so that they win."""
    nodes = spec.node_specs
    cpus = max((node.cpus or spec.cpus or 0 for node in nodes), default=0)
    memory = max((node.memory or spec.memory or 0 for node in nodes), default=0)
    gpus = "" if spec.gpus in ("none", "emulated") else spec.gpus_per_node
    values = {
        "nodes": len(nodes),
        "ntasks-per-node": 1,
        "cpus-per-task": math.ceil(cpus),
        "mem": f"{-(-memory // _MIB)}M" if memory else "",
        "gpus-per-node": gpus,
        "partition": spec.partition,
        "account": spec.account,
        "time": spec.time,
        "constraint": spec.constraint,
    }
    more = _more_options(spec.sbatch or "")
    elastic = ("--no-kill",) if spec.elastic else ()
    return (*(f"--{name}={value}" for name, value in values.items() if value), "--no-requeue", *elastic, *more)


def _more_options(text: str) -> list[str]:
    """Return the options in `--sbatch`; raise SpecError for one that would take the job away from composesim."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"--sbatch '{text}': {error}", hint="quote it as for a shell") from None
    takes_value = False
    for word in words:
        is_option = word.startswith("-")
        why = _why_refused(word) if is_option else "" if takes_value else _OWN_SCRIPT
        if why:
            raise SpecError(f"--sbatch '{word}': {why}", hint="leave it out; sbatch --help lists the options")
        takes_value = is_option and "=" not in word
    return words


def _why_refused(option: str) -> str:
    """Return why an option is refused, "" if it is not. sbatch accepts long options that are cut short, and short ones with a value."""
    name = option.partition("=")[0]
    if not name.startswith("--"):
        name = _SHORT.get(name[:2], name[:2])
    is_long_enough = len(name) >= len("--ar")  # sbatch itself refuses what is shorter, as ambiguous
    return next(
        (why for known, why in _REFUSED.items() if known == name or (is_long_enough and known.startswith(name))), ""
    )


def choose_slurm_gpus(spec: ClusterSpec) -> tuple[Choice, Choice]:
    """Return the GPUs that nodes see, and the backend of torch.distributed."""
    if spec.gpus == "auto" and spec.gpus_per_node:
        gpus = Choice(what="gpus", value=ASSIGNED, why=f"{spec.gpus_per_node} per node, which Slurm chooses")
    elif spec.gpus == "none":
        gpus = Choice(what="gpus", value="none", why=REQUESTED)
    else:
        why = REQUESTED if spec.gpus == "emulated" else "no --gpus-per-node was given"
        gpus = Choice(what="gpus", value="emulated", why=f"CUDA emulated on the CPU: {why}")
    if spec.backend == "nccl" and gpus.value == "none":
        raise SpecError("backend 'nccl' needs NVIDIA GPUs", hint="composesim up --gpus-per-node 1 …")
    backend = "nccl" if gpus.value == ASSIGNED else "gloo"
    if spec.backend != "auto":
        return gpus, Choice(what="backend", value=spec.backend, why=REQUESTED)
    return gpus, Choice(
        what="backend", value=backend, why="nodes have GPUs" if backend == "nccl" else f"GPUs: {gpus.value}"
    )
