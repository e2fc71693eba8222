"""List the targets of `composesim export`, and what each keeps of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compose_sim.core.request.job_files import Change
from compose_sim.plugins.job_files.core.exports import drivers, kubernetes, scripts
from compose_sim.plugins.job_files.core.exports.job import SLURM_KEYS, Job

_JOB = frozenset({"gpus_per_node", "name", "nproc_per_node"})
_POD = _JOB | {"cpus", "image", "memory", "shm_size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of cluster, or a tool that starts jobs on one."""

    write: Callable[[Job], str]
    recipe: str
    keeps: frozenset[str]  # keys of the spec that some targets keep
    submit: str  # the command that submits FILE
    changes: Mapping[str, str]  # what is different on this target for every spec
    needs_image: bool = True


def _kubernetes(write: Callable[[Job], str], *keeps: str, recipe: str = "ddp", **changes: str) -> Target:
    kept = _POD.union(keeps) - ({"nproc_per_node"} if recipe == "ray" else set())
    return Target(write=write, recipe=recipe, keeps=kept, submit="kubectl create -f FILE", changes=changes)


_SSHD = "mpirun reaches the workers by ssh: the image must contain sshd, mpirun and Horovod"
_NO_SCRIPT = "the document names no script and no arguments: submit them with ray job submit -- python SCRIPT"
_OVERLAY = "every node is one task on any machine of the swarm: set constraints if they must not share one"

# What users may type for a target
MEANT: Mapping[str, str] = {
    **{"k8s": "jobset", "kubernetes": "jobset", "kubeflow": "trainjob", "ray": "rayjob"},
    **{
        "mpi": "mpijob",
        "mpirun": "mpijob",
        "horovod": "mpijob",
        "sbatch": "slurm",
        "sky": "skypilot",
        "docker": "swarm",
    },
}

TARGETS: Mapping[str, Target] = {
    "torchrun": Target(
        write=scripts.torchrun_lines,
        recipe="ddp",
        keeps=frozenset({"master_port", "nproc_per_node"}),
        submit="run each line on its host",
        changes={"hosts": "the project and its environment must be at the same path on every host"},
        needs_image=False,
    ),
    "slurm": Target(
        write=scripts.slurm,
        recipe="ddp",
        keeps=_JOB | {"cpus", "memory", "max_restarts", "timeout", *SLURM_KEYS},
        submit="sbatch FILE",
        changes={"folder": "submit it in a folder that all nodes see, with the environment of your script activated"},
        needs_image=False,
    ),
    "jobset": _kubernetes(kubernetes.jobset, "master_port", "max_restarts", "timeout"),
    "trainjob": _kubernetes(
        kubernetes.trainjob, "timeout", runtime="the runtime `torch-distributed` must be installed"
    ),
    "pytorchjob": _kubernetes(kubernetes.pytorchjob, "max_restarts", "timeout", "elastic"),
    "volcano": _kubernetes(kubernetes.volcano, "master_port", "max_restarts"),
    "mpijob": _kubernetes(drivers.mpijob, "max_restarts", "timeout", recipe="horovod", sshd=_SSHD),
    "rayjob": _kubernetes(drivers.rayjob, "max_restarts", "timeout", "elastic", recipe="ray"),
    "raycluster": _kubernetes(drivers.raycluster, "elastic", recipe="ray", script=_NO_SCRIPT),
    "swarm": Target(
        write=scripts.swarm,
        recipe="ddp",
        keeps=(_POD | {"master_port"}) - {"name"},
        submit="docker stack deploy -c FILE NAME",
        changes={"nodes": _OVERLAY},
    ),
    "skypilot": Target(
        write=scripts.skypilot,
        recipe="ddp",
        keeps=_JOB | {"cpus", "image", "master_port", "memory"},
        submit="sky launch FILE",
        changes={"workdir": "SkyPilot copies the current folder to each node, where `setup` must install torch"},
        needs_image=False,
    ),
}


def own_changes(target: Target, job: Job) -> list[Change]:
    """Return what is different on this target for every spec, and what the user must create first."""
    found = [Change(what=what, text=text) for what, text in target.changes.items()]
    if job.secrets and target.submit.startswith("kubectl"):
        literals = " ".join(f'--from-literal={name}="${name}"' for name in job.secrets)
        text = f"create the Secret first: kubectl create secret generic {job.name}-secrets {literals}"
        found.append(Change(what="secrets", text=text))
    elif job.secrets:
        found.append(Change(what="secrets", text=f"export {', '.join(job.secrets)} before you submit the job"))
    return found
