"""Find out which faults this machine supports with which engine. Each capability is tested once."""

from __future__ import annotations

from functools import cache

from compose_sim.core.faults.kind import FaultKind
from compose_sim.core.network.shaping_script import lacking
from compose_sim.engine.docker.network import find_means
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import ComposesimError


def why_unsupported(kind: FaultKind, engine: str) -> str:
    """Return why this machine does not support a kind of fault with an engine, or "" if it does."""
    if engine not in kind.engines:
        if engine == "slurm":
            return "it needs root on the machines of the cluster"
        return f"nodes of the {engine} engine share with the host what the fault would break"
    if engine != "docker":
        return ""
    return _docker_problem() or _missing_capability(kind.needs)


@cache
def _docker_problem() -> str:
    facts = docker_facts()
    return "" if facts.available else facts.reason


@cache
def _missing_capability(need: str) -> str:
    if not need:
        return ""
    if need == "cpu-quota":
        status, output = try_output_of(["docker", "info", "--format", "{{.CPUCfsQuota}}"])
        return "" if status == 0 and output.strip() == "true" else "the Docker daemon does not support CPU quotas"
    try:
        return lacking(need, find_means())
    except ComposesimError as error:
        return f"the test for it failed: {error.message}"
