"""What does composesim know of the machine it plans for? Facts only, gathered once by `engine/host/facts.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compose_sim.core.host.gpus import NO_GPUS, Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """A Python interpreter that nodes can run."""

    executable: str
    prefixes: tuple[str, ...]  # folders a process needs to see to run it: the virtual environment and its base
    packages: Mapping[str, str] = field(default_factory=dict)  # versions of the frameworks' distributions that it has
    torch_cuda: str | None = None  # the CUDA that torch was built for; "" for none, None where it is not known

    @property
    def has_torch(self) -> bool:
        """Whether torch is installed."""
        return "torch" in self.packages


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerFacts:
    """The Docker engine that answers, or why none does."""

    available: bool
    reason: str  # "Docker Engine 26.1.5, Compose 2.26.1", or what is missing
    hint: str = ""
    version: str = ""
    compose_version: str = ""
    used_subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """This machine, as far as a plan depends on it. Sizes in bytes."""

    name: str
    system: str  # "Linux"
    cpus: int
    memory_bytes: int
    folder: str  # the working directory: mounted on all nodes at its own path
    user_id: int  # nodes run as the caller, or as the folder's owner where the caller is root
    group_id: int
    user_name: str
    python: PythonFacts | None
    docker: DockerFacts
    gpus: Inventory = NO_GPUS
    system_paths: tuple[str, ...] = field(default=())  # what `--image host` mounts beside the Python prefixes
    host_subnets: tuple[str, ...] = field(default=())
    listening: Mapping[int, str] = field(default_factory=dict)  # TCP ports of 127.0.0.1 that are taken, and by whom
