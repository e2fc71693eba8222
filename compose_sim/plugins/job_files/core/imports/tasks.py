"""Read a Docker Swarm stack and a SkyPilot task."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from compose_sim.core.request.yaml_source import KeyPath, YamlText, dotted
from compose_sim.core.text import parse_bytes
from compose_sim.plugins.job_files.core.exports.job import SHARED_MEMORY
from compose_sim.plugins.job_files.core.imports.draft import Object
from compose_sim.plugins.job_files.core.imports.launch import (
    Cluster,
    calls_of_words,
    take_gpus,
    take_program,
    take_variable,
    take_variables,
)
from compose_sim.plugins.job_files.core.imports.pods import NAMED_HERE
from compose_sim.plugins.job_files.core.imports.shell import UNKNOWN, Shell

_DOLLARS = re.compile(r"\$(?:(\$)|\{(\w{1,199})(?::?[-?][^}]{0,999})?\}|(\w+))")
_NUMBER_OF_NODE = re.compile(r"(--node[-_]rank[= ]?)\d+")


def read_swarm(job: Object, others: Sequence[YamlText]) -> None:
    """Take a stack: the replicas of all services that run the same program are nodes."""
    services: list[KeyPath] = [("services", str(name)) for name in job.keys("services")]
    groups: dict[str, list[KeyPath]] = {}
    for at in services:
        groups.setdefault(_program_of(job.peek(*at)), []).append(at)
    trains = [group for group in groups.values() if job.has(*group[0], "command") or job.has(*group[0], "entrypoint")]
    if not trains:
        raise job.error(("services",), "no service of this stack has a command")
    nodes_of = {id(group): sum(_replicas(job, at) for at in group) for group in trains}
    chosen = max(trains, key=lambda group: nodes_of[id(group)])
    for group in groups.values():
        if group is not chosen:
            for at in group:
                job.note("ignored", "only the services that train run here", *at)
    for at in chosen[1:]:
        job.note("taken", f"like {dotted(chosen[0])}", *at)
        job.used.add(at)
    own, nodes = chosen[0], nodes_of[id(chosen)]
    job.draft.take("nodes", nodes, dotted(own), job.line(*own))
    if job.has(*own, "image"):
        job.take("image", job.text(*own, "image"), *own, "image")
    variables = _variables(job, (*own, "environment"), filled=True)
    gpus, gpus_at = _resources_of_service(job, own)
    words = [*_words(job, (*own, "entrypoint")), *_words(job, (*own, "command"))]
    at = (*own, "command" if job.has(*own, "command") else "entrypoint")
    calls = calls_of_words(tuple(words), job.line(*at), Shell(variables=variables))
    take_program(job.draft, calls, Cluster(nodes=nodes, gpus=gpus), key=dotted(at), line=job.line(*at))
    take_gpus(job.draft, gpus, dotted(gpus_at), job.line(*gpus_at))


def _program_of(service: Any) -> str:
    """Return what is equal for the nodes of a job: image and program, without the number of the node."""
    keys = ("image", "build", "entrypoint", "command", "working_dir")
    values = [service.get(key) for key in keys] if isinstance(service, Mapping) else [service]
    return _NUMBER_OF_NODE.sub(r"\1", repr(values))


def _replicas(job: Object, at: KeyPath) -> int:
    return (job.number(*at, "deploy", "replicas") or 1) if job.has(*at, "deploy", "replicas") else 1


def _words(job: Object, path: KeyPath) -> list[str]:
    value = job.peek(*path)
    try:
        words = shlex.split(job.text(*path)) if isinstance(value, str) else job.words(*path)
    except ValueError as error:
        raise job.error(path, f"{dotted(path)}: {error}") from None
    return [_filled(word) for word in words]


def _filled(text: str) -> str:
    """Return a text in which Docker has replaced `$$`; a variable of whoever deploys the stack stays as text."""
    return _DOLLARS.sub(lambda match: "$" if match[1] else f"{UNKNOWN}${{{match[2] or match[3]}}}", text)


def _variables(job: Object, path: KeyPath, *, filled: bool) -> dict[str, str]:
    """Take the variables of a mapping, or of a list of NAME=value."""
    value = job.get(*path)
    pairs: dict[str, tuple[Any, KeyPath]] = {}
    if isinstance(value, Mapping):
        pairs = {str(name): (each, (*path, str(name))) for name, each in value.items()}
    for index, each in enumerate(value if isinstance(value, list) else ()):
        name, equals, text = str(each).partition("=")
        pairs[name] = (text if equals else None, (*path, index))
    texts = {name: _filled(str(text)) if filled else str(text) for name, (text, _) in pairs.items()}
    found = {name: (texts[name], job.line(*at)) for name, (text, at) in pairs.items() if text is not None}
    for name, (text, line) in found.items():
        take_variable(job.draft, name, text, key=dotted(pairs[name][1]), line=line)
    unset = {name: (*path, name) for name in job.declared(*path) if not isinstance(value, list)}
    unset |= {name: at for name, (_, at) in pairs.items()}
    for name, at in unset.items():
        if name not in found:
            job.note("ignored", f"env {name}: its value is not in this file: --env {name}", *at)
    return {name: text for name, (text, _) in found.items()}


def _resources_of_service(job: Object, own: KeyPath) -> tuple[int, KeyPath]:
    resources = (*own, "deploy", "resources")
    limits, reservations = (*resources, "limits"), (*resources, "reservations")
    for part in (reservations, limits):
        if job.has(*part, "cpus"):
            job.take("cpus", job.text(*part, "cpus"), *part, "cpus")
        if job.has(*part, "memory"):
            job.take("memory", _size(job, (*part, "memory")), *part, "memory")
    for index in job.keys(*own, "volumes"):
        volume = (*own, "volumes", index)
        if job.peek(*volume, "target") == SHARED_MEMORY and job.has(*volume, "tmpfs", "size"):
            job.take("shm_size", _size(job, (*volume, "tmpfs", "size")), *volume, "tmpfs", "size")
            job.used.update({(*volume, "target"), (*volume, "type")})
    if job.has(*own, "shm_size"):
        job.take("shm_size", _size(job, (*own, "shm_size")), *own, "shm_size")
    gpus, gpus_at = 0, reservations
    for index in job.keys(*reservations, "generic_resources"):
        at = (*reservations, "generic_resources", index, "discrete_resource_spec")
        if "gpu" in str(job.peek(*at, "kind")).lower():
            gpus, gpus_at = job.number(*at, "value") or 0, at
            job.used.add((*at, "kind"))
    for index in job.keys(*reservations, "devices"):
        at = (*reservations, "devices", index)
        if "gpu" in str(job.peek(*at, "capabilities")):
            count = job.text(*at, "count")
            gpus, gpus_at = int(count) if count.isdecimal() else 1, at
            job.used.update({(*at, "driver"), (*at, "capabilities")})
    return gpus, gpus_at


def _size(job: Object, path: KeyPath) -> int:
    try:
        return parse_bytes(job.text(*path))
    except ValueError as error:
        raise job.error(path, f"{dotted(path)}: {error}") from None


def read_skypilot(job: Object, others: Sequence[YamlText]) -> None:
    """Take a SkyPilot task: what its `run` starts on every node."""
    if not job.has("run"):
        raise job.error((), "this SkyPilot task has no run")
    if job.has("name"):
        job.note("ignored", NAMED_HERE, "name")
    nodes = job.number("num_nodes", least=1) or 1
    job.take("nodes", nodes, "num_nodes")
    gpus, gpus_at = _accelerators(job)
    for key, name in (("cpus", "cpus"), ("memory", "memory")):
        if text := job.text("resources", key).rstrip("+x"):
            job.take(name, f"{text}g" if name == "memory" and text[-1].isdecimal() else text, "resources", key)
    image = job.text("resources", "image_id") if isinstance(job.peek("resources", "image_id"), str) else ""
    if image.startswith("docker:"):
        job.take("image", image.removeprefix("docker:"), "resources", "image_id")
    envs = _variables(job, ("envs",), filled=False)
    for name in job.declared("secrets"):
        job.note("ignored", f"env {name}: its value is not in this file: --env {name}", "secrets", name)
    known = {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NUM_GPUS_PER_NODE": str(gpus)}
    shell = Shell(variables={**envs, **known})
    whole = ("bash", "-c", job.text("run"))
    line = job.line("run") + ("\n" in job.text("run"))
    calls = [
        each for call in shell.calls(job.text("run"), line) for each in calls_of_words(call.words, call.line, shell)
    ]
    take_program(
        job.draft,
        calls,
        Cluster(nodes=nodes, gpus=gpus),
        key="run",
        line=job.line("run"),
        whole=whole,
    )
    take_variables(job.draft, shell.exported)
    take_gpus(job.draft, gpus, dotted(gpus_at), job.line(*gpus_at))


def _accelerators(job: Object) -> tuple[int, KeyPath]:
    """Return the GPUs per node: of the first choice, if there are several."""
    at: KeyPath = ("resources", "accelerators")
    for choices in ("any_of", "ordered"):
        if not job.has(*at) and job.has("resources", choices):
            at = ("resources", choices, 0, "accelerators")
    value = job.peek(*at)
    first = next(iter(job.keys(*at)), None)  # of several choices
    if first is not None:
        at, value = (*at, first), value[first]
        value = f"{first}:{value or 1}" if isinstance(first, str) else value
    job.used.add(at)
    name, _, count = str(value or "").partition(":")
    return (int(float(count)) if re.fullmatch(r"[0-9]{1,4}(\.[0-9]+)?", count) else int(bool(name))), at
