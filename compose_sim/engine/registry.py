"""Make engines by name, and list those of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

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
    if name == "slurm":
        from compose_sim.engine.slurm.engine import SlurmEngine

        return SlurmEngine()
    raise EngineError(f"there is no engine named '{name}'", hint="composesim up --engine docker|local|slurm …")


def available_engines() -> list[Engine]:
    """Return the engines that work now; the local engine always does."""
    from compose_sim.engine.host.docker_facts import docker_facts

    names = (("docker", docker_facts().available), ("local", True), ("slurm", shutil.which("squeue")))
    return [make_engine(name) for name, is_there in names if is_there]


@contextmanager
def shared(engine: Engine) -> Iterator[Engine | None]:
    """Yield an engine on which other runs start faster while the context is open; None if only a new one could run them."""
    from compose_sim.engine.local.engine import LocalEngine

    if isinstance(engine, LocalEngine):
        with engine.keeping_starter():
            yield engine
    else:
        yield None
