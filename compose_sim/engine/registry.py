"""Which engines does this machine have?"""

from __future__ import annotations

from compose_sim.engine.protocol import Engine
from compose_sim.errors import EngineError


def make_engine(name: str) -> Engine:
    """The engine of that name."""
    if name == "docker":
        from compose_sim.engine.docker.engine import DockerEngine

        return DockerEngine()
    if name == "local":
        from compose_sim.engine.local.engine import LocalEngine

        return LocalEngine()
    raise EngineError(f"there is no engine named '{name}'", hint="composesim up --engine docker|local …")


def available_engines() -> list[Engine]:
    """The engines that answer now; the local engine always does."""
    from compose_sim.engine.host.facts import docker_facts

    engines = [make_engine("local")]
    if docker_facts().available:
        engines.insert(0, make_engine("docker"))
    return engines
