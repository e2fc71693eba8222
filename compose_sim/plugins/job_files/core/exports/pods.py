"""Make the parts that all Kubernetes kinds share: containers, pods, quantities, names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from compose_sim.errors import SpecError
from compose_sim.plugins.job_files.core.exports.job import Job
from compose_sim.plugins.job_files.core.exports.quantities import quantity

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
