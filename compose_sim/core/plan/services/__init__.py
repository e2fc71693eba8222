"""Define the services that can run beside the nodes of any recipe, each in one pure module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.plan.model import Mount, PlannedService
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.request.names import SERVICE_NAMES

FILES = "services"  # folder of the configuration files, in the run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What a service is planned from. Paths are those in the container."""

    run: str
    value: str = ""  # of `--with NAME=VALUE`
    python: str
    folder: str  # of the run
    working_directory: str  # of the nodes
    node_mounts: tuple[Mount, ...]  # files of this machine that nodes see
    has_token: bool  # whether the nodes have the run's token

    def sees(self, *names: str, writable: bool = False) -> tuple[Mount, ...]:
        """Return mounts of folders of the run."""
        return tuple(
            Mount(source=f"./{name}", target=f"{self.folder}/{name}", read_only=not writable) for name in names
        )

    def role(self, role: str, *arguments: str) -> tuple[str, ...]:
        """Return the command line of a role of `node/`."""
        return (self.python, *role_command(self.folder, role, *arguments))


class Service(Protocol):
    """The values and the function of a service module."""

    PACKAGES: Mapping[str, str]  # distributions that the nodes' image must have -> the oldest version that works
    NEEDS: tuple[str, ...]  # other services that it depends on

    def containers(self, context: ServiceContext) -> tuple[PlannedService, ...]:
        """Return the containers, the published one first."""


def load_service(name: str) -> Service:
    """Return the service of that name."""
    return cast(Service, import_module(f"compose_sim.core.plan.services.{name}"))


def requested_services(texts: Iterable[str]) -> dict[str, str]:
    """Return name -> value of the services and of those that they depend on, in the order of SERVICE_NAMES."""
    given = {name: value for name, _, value in (text.partition("=") for text in texts)}
    needed = {need for name in given for need in load_service(name).NEEDS}
    return {name: given.get(name, "") for name in SERVICE_NAMES if name in given or name in needed}


def needed_packages(texts: Iterable[str]) -> dict[str, str]:
    """Return the distributions that these services need in the nodes' image, with minimum versions."""
    return {
        package: least for name in requested_services(texts) for package, least in load_service(name).PACKAGES.items()
    }
