"""Read pods: the container that trains, its command, variables, resources and shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from compose_sim.core.request.yaml_source import KeyPath, dotted
from compose_sim.plugins.job_files.core.exports.job import GPU, SHARED_MEMORY, parse_quantity
from compose_sim.plugins.job_files.core.imports.draft import Object
from compose_sim.plugins.job_files.core.imports.launch import (
    calls_of_words,
    inner_script,
    read_launch,
    take_variable,
    take_variables,
)
from compose_sim.plugins.job_files.core.imports.shell import UNKNOWN, Call, Shell

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_FEWEST_BYTES = 1 << 20
NAMED_HERE = "the run is named after the script: --name"
# Keys of pods and jobs that have no effect here -> why.
REASONS = {
    "volumes": "mount a folder of this machine: --mount SRC:DST",
    "volumeMounts": "mount a folder of this machine: --mount SRC:DST",
    "initContainers": "only the container that trains runs here",
    "containers": "only the container that trains runs here",
    "workingDir": "ranks start in your project",
    "ports": "nodes reach one another without it",
    "imagePullSecrets": "Docker logs in: docker login",
    "imagePullPolicy": "an image that is on this machine is not pulled again",
    "envFrom": "its values are in another object: --env-file",
    "hostNetwork": "nodes have a network of their own",
    "nodeSelector": "there is one machine",
    "affinity": "there is one machine",
    "tolerations": "there is one machine",
    "securityContext": "nodes have no privileges",
    **dict.fromkeys(
        ("cleanPodPolicy", "ttlSecondsAfterFinished", "shutdownAfterJobFinishes"),
        "nodes are removed at the end: --keep",
    ),
    **dict.fromkeys(
        ("restartPolicy", "restart_policy", "backoffLimit", "policies"), "a failed rank ends the run: --max-restarts"
    ),
    "metadata": NAMED_HERE,
    "status": "the cluster writes it",
    "setup": "install what it installs in your environment or image",
    "file_mounts": "mount a folder of this machine: --mount SRC:DST",
    "workdir": "nodes mount your project",
    **dict.fromkeys(("schedulerName", "minAvailable"), "all nodes start together"),
    **dict.fromkeys(
        ("network", "networks", "endpoint_mode", "svc"), "nodes have a network and host names of their own"
    ),
    **dict.fromkeys(("mpiImplementation", "sshAuthMountPath", "launcherCreationPolicy"), "composesim starts the ranks"),
    **dict.fromkeys(("rayVersion", "rayStartParams", "authOptions"), "composesim starts Ray, with a token"),
    **dict.fromkeys(("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf"), "composesim is the rendezvous"),
    "medium": "/dev/shm is always memory",
    "completionMode": "nodes are always numbered",
}


@dataclass(slots=True)
class Pod:
    """What was read from a pod."""

    calls: list[Call]
    command: KeyPath
    environment: dict[str, str]
    words: tuple[str, ...] = ()  # the whole command
    gpus: int = 0
    gpus_at: KeyPath = ()


def read_pod(job: Object, path: KeyPath, *names: str, with_resources: bool = True) -> Pod:
    """Take what a pod's spec says, from the container with the first of these names that exists, else from the first container."""
    indexes = job.keys(*path, "containers")
    if not indexes:
        raise job.error(path, "this pod has no containers")
    known = {str(job.peek(*path, "containers", index, "name")): index for index in indexes}
    index = next((known[name] for name in names if name in known), indexes[0])
    own = (*path, "containers", index)
    job.used.add((*own, "name"))
    pod = read_container(job, own)
    if with_resources:
        pod.gpus, pod.gpus_at = read_resources(job, (*own, "resources"))
        read_shared_memory(job, path, own)
    return pod


def read_container(job: Object, path: KeyPath, *, env: str = "env") -> Pod:
    """Take the image, the variables and the command of a container."""
    if job.has(*path, "image"):
        job.take("image", job.text(*path, "image"), *path, "image")
    variables = _read_variables(job, (*path, env))
    words = [*job.words(*path, "command"), *job.words(*path, "args")]
    at = (*path, "command" if job.has(*path, "command") else "args")
    filled = tuple(_REFERENCE.sub(lambda match: _value(match, variables), word) for word in words)
    shell = Shell(variables={**variables})
    line = job.line(*at) + (1 if any("\n" in word for word in filled) else 0)
    starts = job.has(*path, "command") or read_launch(filled) or inner_script(filled)
    filled = filled if starts else ()  # else these are arguments of the image's program
    calls = calls_of_words(filled, line, shell) if filled else []
    take_variables(job.draft, shell.exported)
    return Pod(calls=calls, command=at, environment=variables, words=filled)


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """Return what Kubernetes puts in place of `$(NAME)`, or of the `$$` that stands for a dollar sign."""
    return "$" if match[1] is None else variables.get(match[1], f"{UNKNOWN}$({match[1]})")


def _read_variables(job: Object, path: KeyPath) -> dict[str, str]:
    found: dict[str, str] = {}
    for index in job.keys(*path):
        name = job.text(*path, index, "name")
        if job.has(*path, index, "valueFrom"):
            source = next(iter(job.keys(*path, index, "valueFrom")), "")
            is_reference = source in ("secretKeyRef", "configMapKeyRef")
            text = f"its value is in another object: --env {name}" if is_reference else "the cluster sets it"
            job.note("ignored", f"env {name}: {text}", *path, index)
            continue
        text = job.text(*path, index, "value")
        found[name] = _REFERENCE.sub(lambda match: _value(match, found), text)
        take_variable(job.draft, name, found[name], key=dotted((*path, index)), line=job.line(*path, index))
    return found


def read_resources(job: Object, path: KeyPath) -> tuple[int, KeyPath]:
    """Take CPUs and memory, and return the GPUs with their place: limits if there are any, else requests."""
    gpus, gpus_at = 0, path
    memory_at = next(
        (at for part in ("limits", "requests") if job.has(*(at := (*path, part, "memory")))),
        (*path, "limits", "memory"),
    )
    cpu_at = next((at for part in ("requests", "limits") if job.has(*(at := (*path, part, "cpu")))), path)
    for part in ("limits", "requests"):
        for name in job.keys(*path, part):
            at = (*path, part, str(name))
            if str(name).endswith("/gpu") or str(name).startswith(GPU):
                gpus, gpus_at = max(gpus, job.number(*at) or 0), at
            elif name in ("cpu", "memory") and at not in (cpu_at, memory_at):
                counts = cpu_at if name == "cpu" else memory_at
                job.note("ignored", f"line {job.line(*counts)} counts", *at)
    if job.has(*memory_at):
        job.take("memory", _bytes(job, memory_at), *memory_at, said=f"memory {job.text(*memory_at)}")
    if cpu_at != path:
        job.take("cpus", _quantity(job, cpu_at), *cpu_at)
    return gpus, gpus_at


def read_shared_memory(job: Object, path: KeyPath, container: KeyPath) -> None:
    """Take the size of the volume at /dev/shm."""
    mounts = [(*container, "volumeMounts", index) for index in job.keys(*container, "volumeMounts")]
    mounted = [at for at in mounts if job.peek(*at, "mountPath") == SHARED_MEMORY]
    for mount in mounted:
        name = job.text(*mount, "name")
        job.used.add((*mount, "mountPath"))
        for index in job.keys(*path, "volumes"):
            volume = (*path, "volumes", index)
            if job.peek(*volume, "name") == name:
                job.used.add((*volume, "name"))
                if job.has(*volume, "emptyDir", "sizeLimit"):
                    at = (*volume, "emptyDir", "sizeLimit")
                    job.take("shm_size", _bytes(job, at), *at, said=f"shm_size {job.text(*at)}")


def _bytes(job: Object, path: KeyPath) -> int:
    size = _quantity(job, path)
    if size < _FEWEST_BYTES:
        text = job.text(*path)
        hint = f"{text[:-1]}Mi is mebibytes" if text.endswith("m") else ""
        raise job.error(path, f"{path[-1]}: '{text}' is {size:g} bytes", hint=hint)
    return int(size)


def _quantity(job: Object, path: KeyPath) -> float:
    try:
        return parse_quantity(job.text(*path))
    except ValueError as error:
        raise job.error(path, f"{path[-1]}: {error}") from None
