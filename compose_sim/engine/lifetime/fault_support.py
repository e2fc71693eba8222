"""Which faults can this machine bring about, on which engine? Whatever a kind needs of the machine is tried here, once."""

from __future__ import annotations

from functools import cache

from compose_sim.core.faults import Kind
from compose_sim.core.network.shaping_script import lacking
from compose_sim.engine.docker.network import find_means
from compose_sim.engine.host.facts import docker_facts
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import ComposesimError

_OF_DAEMON = {"cpu-quota": "CPUCfsQuota", "memory-limit": "MemoryLimit", "pids-limit": "PidsLimit"}


def why_not(kind: Kind, engine: str) -> str:
    """Why faults of a kind cannot be had on an engine of this machine; "" where they can."""
    if engine not in kind.ENGINES:
        return f"nodes of the {engine} engine share what it breaks with this machine"
    if engine == "local":
        return ""
    return _docker_lacks() or _lacking(kind.NEEDS)


@cache
def _docker_lacks() -> str:
    facts = docker_facts()
    return "" if facts.available else facts.reason


@cache
def _lacking(need: str) -> str:
    if not need:
        return ""
    if need in _OF_DAEMON:
        status, said = try_output_of(["docker", "info", "--format", f"{{{{.{_OF_DAEMON[need]}}}}}"])
        return "" if status == 0 and said.strip() == "true" else f"the Docker daemon has no {need.replace('-', ' ')}"
    try:
        return lacking(need, find_means())
    except ComposesimError as error:
        return f"it could not be tried: {error.message}"
