"""Make engines by name, and list those of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from compose_sim.engine.protocol import Engine
from compose_sim.errors import EngineError
from compose_sim.plugins.registry import ENGINES, built_in


def make_engine(name: str) -> Engine:
    """Return a new engine of that name."""
    if name == "docker":
        from compose_sim.engine.docker.engine import DockerEngine

        return DockerEngine()
    if name == "local":
        from compose_sim.engine.local.engine import LocalEngine

        return LocalEngine()
    if feature := built_in(ENGINES).get(name):
        engine: Engine = feature.load()()
        return engine
    known = "|".join(("docker", "local", *built_in(ENGINES)))
    raise EngineError(f"there is no engine named '{name}'", hint=f"composesim up --engine {known} …")


def available_engines() -> list[Engine]:
    """Return the engines that work now; the local engine always does."""
    from compose_sim.engine.host.docker_facts import docker_facts

    names = (*(("docker",) if docker_facts().available else ()), "local", *available_plug_ins())
    return [make_engine(name) for name in names]


def available_plug_ins() -> tuple[str, ...]:
    """Return the names of the engines of plug-ins that this machine can use."""
    return tuple(name for name, feature in built_in(ENGINES).items() if shutil.which(feature.program))


@contextmanager
def shared(engine: Engine) -> Iterator[Engine | None]:
    """Yield an engine on which other runs start faster while the context is open; None if only a new one could run them."""
    from compose_sim.engine.local.engine import LocalEngine

    if isinstance(engine, LocalEngine):
        with engine.keeping_starter():
            yield engine
    else:
        yield None
