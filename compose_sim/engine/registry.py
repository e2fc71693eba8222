"""Make engines by name, and list those of this machine."""

from __future__ import annotations

from compose_sim.engine.protocol import Engine
from compose_sim.errors import EngineError


def make_engine(name: str) -> Engine:
    """Return a new engine of that name."""
    if name == "docker":
        from compose_sim.engine.docker.engine import DockerEngine

        return DockerEngine()
    if name == "local":
        from compose_sim.engine.local.engine import LocalEngine

        return LocalEngine()
    raise EngineError(f"there is no engine named '{name}'", hint="composesim up --engine docker|local …")


def available_engines() -> list[Engine]:
    """Return the engines that work now; the local engine always does."""
    from compose_sim.engine.host.docker_facts import docker_facts

    return [make_engine(name) for name in (("docker", "local") if docker_facts().available else ("local",))]
