"""Turn a spec into what every cluster must know about a job, and into the parts that all Kubernetes kinds share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import yaml

from compose_sim.core.plan.environment import is_secret
from compose_sim.core.plan.model import Program
from compose_sim.core.request.flags import options_of
from compose_sim.core.request.job_files import Change
from compose_sim.core.request.spec import ClusterSpec, NodeSpec
from compose_sim.core.text import format_bytes, format_count
from compose_sim.errors import SpecError

STORE_PORT = 29500  # torchrun's default
SLURM_KEYS = tuple(each.field for each in options_of(ClusterSpec) if each.group == "slurm")  # none without that plug-in
_OWN_VARIABLE = re.compile(r"\bCOMPOSESIM_[A-Z_]+\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on a cluster: equal nodes that run the same program."""

    name: str  # a DNS label
    nodes: int
    nproc: int  # ranks per node
    program: tuple[str, ...]  # what follows the options of torchrun or python: `train.py --epochs 3`, or a command
    image: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]  # variables whose values are not written
    gpus: int  # per node
    accelerator: str  # the GPU's name on the cluster, or ""
    cpus: float | None  # per node, as the next two
    memory_bytes: int | None
    shm_bytes: int
    port: int  # MASTER_PORT
    max_restarts: int
    elastic: tuple[int, int] | None
    timeout_s: float | None
    # Options of sbatch that the spec names, and `sbatch` for others.
    slurm: Mapping[str, str] = field(default_factory=dict)


# What happens on every target to a key of the spec that the target does not keep.
LEFT_OUT = {
    "link": "the network has the cluster's own bandwidth and delay",
    "scratch": "there is no /scratch: mount a volume there",
    "services": "services beside the nodes are not part of the job",
    "publish": "no port is published",
    "subnet": "the cluster chooses the addresses",
    "network": "the cluster decides what nodes can reach",
    "share": "every rank gets a GPU to itself",
    "gpu_memory": "no limit is set for a rank's GPU memory",
    "options": "options of the recipe have no counterpart",
    "launcher": "torchrun, or the framework, starts the ranks",
    "master": "the first node listens at MASTER_ADDR",
    "master_port": "the cluster chooses MASTER_PORT",
    "user": "the cluster, or the image, decides which user runs the job",
    "hang_timeout": "torch's own timeout ends a hang",
    "python": "the image, or the active environment, provides the interpreter",
    "backend": "the script's init_process_group decides",
    "max_restarts": "nobody starts a new round: the job fails with the first rank",
    "elastic": "the job has a fixed number of nodes",
    "timeout": "the job has no time limit",
    "cpus": "no number of CPUs is requested",
    "memory": "no memory is requested",
    **dict.fromkeys(SLURM_KEYS, "only Slurm has such an option"),
    "shm_size": "/dev/shm has the size that the cluster gives it",
    "image": "the environment that is active there runs the script",
    "name": "whoever submits the job names it",
    "gpus_per_node": "torchrun uses the GPUs that each host has",
    "nproc_per_node": "Ray starts tasks, not ranks",
    "node_timeout": "the cluster decides when a node is lost",
    **dict.fromkeys(("engine", "force", "keep", "keep_runs", "keep_runs_size"), "is about runs on this machine"),
    "check": "composesim does not check the run: composesim check does, here",
}


def job_of(
    spec: ClusterSpec,
    program: Program,
    *,
    name: str,
    image: str,
    accelerator: str,
    variables: Mapping[str, str],
) -> Job:
    """Return the job of a spec and of the variables in its files; raise SpecError if nodes differ in their number of ranks."""
    nodes = spec.node_specs[: spec.initial_node_count]
    ranks = {node.nproc_per_node or spec.nproc_per_node for node in nodes}
    if len(ranks) > 1:
        raise SpecError(
            f"nodes have {', '.join(map(str, sorted(ranks)))} ranks: a job on a cluster has equally many on each node",
            hint="set nproc_per_node for all nodes: composesim export --nproc-per-node 2 …",
        )
    environment = {**variables, **spec.env}
    return Job(
        name=name.replace("_", "-").strip("-"),
        nodes=len(nodes),
        nproc=max(ranks),
        program=_words(program),
        image=image,
        environment={key: value for key, value in environment.items() if not is_secret(key)},
        secrets=tuple(key for key in environment if is_secret(key)),
        gpus=_gpus(spec, nodes, max(ranks)),
        accelerator=accelerator,
        cpus=_largest([node.cpus or spec.cpus for node in nodes]),
        memory_bytes=_largest([node.memory or spec.memory for node in nodes]),
        shm_bytes=spec.shm_size,
        port=spec.master_port or STORE_PORT,
        max_restarts=spec.max_restarts,
        elastic=spec.elastic_range,
        timeout_s=spec.timeout,
        slurm={key: value for key in SLURM_KEYS if (value := getattr(spec, key))},
    )


def torchrun(job: Job, *, node_rank: str, master: str, port: str) -> list[str]:
    """Return the start of torchrun's command line for one node; the program follows, quoted as its reader needs it."""
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.nproc}",
        f"--node-rank={node_rank}",
        f"--master-addr={master}",
        f"--master-port={port}",
    ]


def changes_of(spec: ClusterSpec, job: Job, *, keeps: Collection[str], needs_image: bool, source: str) -> list[Change]:
    """Return what is different there, for a target that keeps these keys of the spec and a script with this text."""
    found = [
        Change(what="with" if key == "services" else key, text=text)
        for key, text in LEFT_OUT.items()
        if key not in keeps and _is_set(spec, key)
    ]
    found += _unequal_nodes(spec, job, keeps)
    for mount in spec.mounts:
        here, target = mount.split(":")[:2]
        found.append(Change(what="mounts", text=f"{here} is a path of this machine: mount a volume at {target}"))
    if job.gpus and spec.gpus in ("auto", "emulated"):
        gpus = f"each node requests {format_count(job.gpus, 'real GPU')}; --gpus none exports a job without GPUs"
        found.append(Change(what="gpus", text=gpus))
    elif job.gpus and spec.gpus != "all":
        gpus = f"the cluster chooses {format_count(job.gpus, 'GPU')} per node: '{spec.gpus}' names some of this machine"
        found.append(Change(what="gpus", text=gpus))
    if "time" in keeps and job.timeout_s and "time" in job.slurm:
        found.append(Change(what="timeout", text=f"--time {job.slurm['time']} is the limit of the job"))
    if needs_image:
        text = f"nodes mount your project here; there, '{job.image}' must contain it in the working directory"
        found.append(Change(what="project", text=text))
    for name in sorted({*_OWN_VARIABLE.findall(source)}):
        text = "composesim sets this variable for the script; nobody sets it there: read it with a default"
        found.append(Change(what=name, text=text))
    found.append(
        Change(what="composesim", text="no hang diagnosis, no checks and no report: torch's own timeout ends a hang")
    )
    return found


def _unequal_nodes(spec: ClusterSpec, job: Job, keeps: Collection[str]) -> list[Change]:
    nodes, found = spec.node_specs[: spec.initial_node_count], []
    largest = {"cpus": f"{job.cpus:g}" if job.cpus else "", "memory": format_bytes(job.memory_bytes or 0)}
    for key in largest:
        if len({getattr(node, key) or getattr(spec, key) for node in nodes}) > 1:
            text = f"nodes are equal there: each gets {largest[key]}" if key in keeps else LEFT_OUT[key]
            found.append(Change(what=f"nodes.{key}", text=text))
    for number, node in enumerate(nodes):
        if node.gpus:
            gpus = f"nodes are equal there: each gets {format_count(job.gpus, 'GPU')}"
            found.append(Change(what=f"nodes.{number}.gpus", text=gpus))
        if node.env:
            found.append(Change(what=f"nodes.{number}.env", text=f"nodes are equal there: no {', '.join(node.env)}"))
    return found


def _words(program: Program) -> tuple[str, ...]:
    return (*(("-m",) if program.is_module else ()), program.target, *program.arguments)


def _gpus(spec: ClusterSpec, nodes: Sequence[NodeSpec], nproc: int) -> int:
    """Return the GPUs per node: none if the request says so, else those that it names, else one per rank."""
    if spec.gpus == "none" or spec.backend == "gloo":
        return 0
    named = [len(node.gpus.split(",")) for node in nodes if node.gpus and node.gpus != "none"]
    return max(named, default=spec.gpus_per_node or nproc)


def _largest(values: Sequence[Any]) -> Any:
    return max((value for value in values if value), default=None)


def _is_set(spec: ClusterSpec, key: str) -> bool:
    default = type(spec).model_fields[key].get_default(call_default_factory=True)
    return key in spec.model_fields_set and getattr(spec, key) not in (default, None)


_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?)(?:[eE]([0-9]{1,2})|([numkMGTP]|[KMGTP]i)?)")


def quantity(size: int) -> str:
    """Return bytes as a quantity: `512Mi`. Kubernetes reads the `512m` of Docker and composesim as 0.512 bytes."""
    for unit in ("Gi", "Mi", "Ki"):
        if size % _BINARY[unit] == 0:
            return f"{size // _BINARY[unit]}{unit}"
    return str(size)


def parse_quantity(text: str) -> float:
    """Return the number that a quantity stands for; raise ValueError for other text."""
    match = _QUANTITY.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text:.40}' is not a quantity: write it like 500m, 2 or 16Gi")
    number, exponent, suffix = Decimal(match[1]), int(match[2] or 0), match[3] or ""
    factor = Decimal(_BINARY[suffix]) if suffix in _BINARY else Decimal(_DECIMAL[suffix])
    return float(number * factor * Decimal(10) ** exponent)


Object = dict[str, Any]

GPU = "nvidia.com/gpu"
SHARED_MEMORY = "/dev/shm"
# Target -> apiVersion and kind of the object that an export writes and an import reads.
KINDS = {
    "jobset": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    "pytorchjob": ("kubeflow.org/v1", "PyTorchJob"),
    "volcano": ("batch.volcano.sh/v1alpha1", "Job"),
    "mpijob": ("kubeflow.org/v2beta1", "MPIJob"),
    "rayjob": ("ray.io/v1", "RayJob"),
    "raycluster": ("ray.io/v1", "RayCluster"),
}
_LONGEST_NAME = 63  # of a pod, with the suffix that the controller adds
_VOLUME = "shm"


class _Plain(yaml.SafeDumper):
    """Write equal parts twice: not every tool reads anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True for all values."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Write a text of several lines as lines."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


def as_yaml(document: Object) -> str:
    """Return a document as YAML."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=120)


def resource(target: str, job: Job, spec: Object) -> str:
    """Return the object of a target."""
    version, kind = KINDS[target]
    return as_yaml({"apiVersion": version, "kind": kind, "metadata": {"name": job.name}, "spec": spec})


def literal(word: str) -> str:
    """Return a word that Kubernetes leaves alone: it replaces $(NAME) and $$ in arguments and values."""
    return re.sub(r"\$(?=[$(])", "$$", word)


def environment(job: Job) -> list[Object]:
    """Return the variables of a container. Secrets come from the Secret `NAME-secrets`."""
    plain: list[Object] = [{"name": name, "value": literal(value)} for name, value in job.environment.items()]
    secret = f"{job.name}-secrets"
    return plain + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in job.secrets
    ]


def resources(job: Job) -> Object:
    """Return the GPUs and the memory as limits, and the CPUs as a request: a CPU limit would throttle the ranks."""
    limits = {
        **({GPU: str(job.gpus)} if job.gpus else {}),
        **({"memory": quantity(job.memory_bytes)} if job.memory_bytes else {}),
    }
    return {
        **({"limits": limits} if limits else {}),
        **({"requests": {"cpu": f"{job.cpus:g}"}} if job.cpus else {}),
    }


def container(job: Job, name: str, command: Sequence[str], *, variables: Sequence[Object] = ()) -> Object:
    """Return a container that runs a command; `variables` come before those of the job."""
    variables, needed = [*variables, *environment(job)], resources(job)
    return {
        "name": name,
        "image": job.image,
        **({"command": [*command]} if command else {}),
        **({"env": variables} if variables else {}),
        **({"resources": needed} if needed else {}),
        "volumeMounts": [{"name": _VOLUME, "mountPath": SHARED_MEMORY}],
    }


def shared_memory(job: Job) -> list[Object]:
    """Return the volume of /dev/shm, which has 64 MiB otherwise."""
    return [{"name": _VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": quantity(job.shm_bytes)}}]


def pod(job: Job, own: Object, *, restart: str = "") -> Object:
    """Return a pod template with one container."""
    policy = {"restartPolicy": restart} if restart else {}
    return {"spec": {**policy, "volumes": shared_memory(job), "containers": [own]}}


def deadline(job: Job) -> Object:
    """Return the time limit of a job, if it has one."""
    return {"activeDeadlineSeconds": max(1, int(job.timeout_s))} if job.timeout_s else {}


def require_short_name(job: Job, suffix: str) -> None:
    """Raise SpecError if the names that a controller makes from the job's would be refused: it would create no pods."""
    if not job.name[:1].isalpha():
        raise SpecError(
            f"'{job.name}' does not start with a letter, as the name of a service on Kubernetes must",
            hint=f"composesim export --name run-{job.name} …",
        )
    if len(job.name + suffix) > _LONGEST_NAME:
        raise SpecError(
            f"'{job.name}{suffix}' is longer than the {_LONGEST_NAME} characters of a pod's name",
            hint=f"composesim export --name {job.name[: _LONGEST_NAME - len(suffix)]} …",
        )
