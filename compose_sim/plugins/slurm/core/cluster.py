"""Plan what is different if nodes are those of a Slurm cluster: the job that is submitted, and the checks of the request."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection
from typing import cast

from compose_sim.core.plan.model import REQUESTED, Choice
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.slurm.core.options import SlurmOptions

SUPPORTED = ("memory", "cpus")
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
# Options of sbatch that composesim sets -> the option to use instead.
_SIZES = {
    "--nodes": "--nodes",
    "--ntasks": "--nproc-per-node",
    "--ntasks-per-node": "--nproc-per-node",
    "--cpus-per-task": "--cpus",
    "--mem": "--memory",
    "--gpus": "--gpus-per-node",
    "--gpus-per-node": "--gpus-per-node",
}
_IN_THE_RUN_FOLDER = "composesim keeps the output of a run in its folder, and composesim logs prints it"
_OWN = {
    **_SIZES,
    "--job-name": "--name",
    **dict.fromkeys(("--output", "--error"), _IN_THE_RUN_FOLDER),
    "--input": _OWN_SCRIPT,
    "--chdir": "nodes start in your project: cd PROJECT, and start composesim there",
}
_SHORT = {
    **{"-a": "--array", "-W": "--wait", "-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus"},
    **{"-J": "--job-name", "-o": "--output", "-e": "--error", "-i": "--input", "-D": "--chdir"},
}


def check(spec: ClusterSpec) -> None:
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
    options, nodes = cast(SlurmOptions, spec), spec.node_specs
    cpus = max((node.cpus or spec.cpus or 0 for node in nodes), default=0)
    memory = max((node.memory or spec.memory or 0 for node in nodes), default=0)
    gpus = "" if spec.gpus in ("none", "emulated") else spec.gpus_per_node
    values = {
        "nodes": len(nodes),
        "ntasks-per-node": 1,
        "cpus-per-task": math.ceil(cpus),
        "mem": f"{-(-memory // _MIB)}M" if memory else "",
        "gpus-per-node": gpus,
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "constraint": options.constraint,
    }
    more = _more_options(options.sbatch or "")
    elastic = ("--no-kill",) if spec.elastic else ()
    return (*(f"--{name}={value}" for name, value in values.items() if value), "--no-requeue", *elastic, *more)


def _more_options(text: str) -> list[str]:
    """Return the options in `--sbatch`; raise SpecError for one that contradicts composesim's, or would take the job away."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(f"--sbatch '{text}': {error}", hint="quote it as for a shell") from None
    takes_value = False
    for word in words:
        is_option = word.startswith("-")
        if is_option:
            _refuse_own(word)
        elif not takes_value:
            raise SpecError(f"--sbatch '{word}': {_OWN_SCRIPT}", hint="leave it out; sbatch --help lists the options")
        takes_value = is_option and "=" not in word
    return words


def check_exported(spec: ClusterSpec) -> None:
    """Raise SpecError for an option in `--sbatch` that contradicts the rest of an exported script."""
    for word in (cast(SlurmOptions, spec).sbatch or "").split():
        if word.startswith("-") and (known := _known(word, _SIZES)):
            raise _contradicts(word, _SIZES[known])


def _refuse_own(word: str) -> None:
    """Raise SpecError for an option of sbatch that composesim sets, or cannot work with."""
    if known := _known(word, _REFUSED):
        raise SpecError(f"--sbatch '{word}': {_REFUSED[known]}", hint="leave it out; sbatch --help lists the options")
    if known := _known(word, _OWN):
        raise _contradicts(word, _OWN[known])


def _contradicts(word: str, instead: str) -> SpecError:
    if not instead.startswith("--"):
        return SpecError(f"--sbatch '{word}': {instead}", hint="leave it out")
    return SpecError(f"--sbatch '{word}': composesim sets this option itself", hint=f"composesim up {instead} …")


def _known(word: str, options: Collection[str]) -> str:
    """Return which of these options a word is, or "". sbatch accepts long options cut short, and short ones with a value."""
    name = word.partition("=")[0]
    if not name.startswith("--"):
        name = _SHORT.get(name[:2], name[:2])
    if name in options:
        return name
    is_long_enough = len(name) >= len("--ar")  # sbatch itself refuses what is shorter, as ambiguous
    return next((known for known in options if is_long_enough and known.startswith(name)), "")


def choose(spec: ClusterSpec) -> tuple[Choice, Choice, Choice]:
    """Return the GPUs that nodes see, the backend of torch.distributed, and the options of the job."""
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
    why = "nodes have GPUs" if backend == "nccl" else f"GPUs: {gpus.value}"
    if spec.backend != "auto":
        backend, why = spec.backend, REQUESTED
    job = Choice(what="job", value=shlex.join(submit_options(spec)), why="options of sbatch")
    return gpus, Choice(what="backend", value=backend, why=why), job
