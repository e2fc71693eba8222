"""What may run beside the nodes of any recipe, and how is it asked for? One pure file a service; this module says what a service is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from compose_sim.core.plan.model import Mount, PlannedPort, PlannedService
from compose_sim.core.plan.node_roles import role_words
from compose_sim.core.request.service_names import BUILT_IN

FILES = "services"  # in the run's folder: what services are given to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a service is lowered from. Paths are as its container sees them."""

    run: str
    value: str  # of `--with NAME=VALUE`; "" for none
    python: str
    folder: str  # the run's
    working_directory: str  # the nodes'
    user: str  # uid:gid
    of_nodes: tuple[Mount, ...]  # what nodes see of this machine
    has_token: bool  # the nodes know the run's token
    masters: tuple[PlannedPort, ...]  # what the master publishes

    def sees(self, *names: str, writable: bool = False) -> tuple[Mount, ...]:
        """Folders of the run's own, by name."""
        return tuple(
            Mount(source=f"./{name}", target=f"{self.folder}/{name}", read_only=not writable) for name in names
        )

    def role(self, role: str, *arguments: str) -> tuple[str, ...]:
        """The command that starts a role of `node/`."""
        return (self.python, *role_words(self.folder, role, *arguments))


class Service(Protocol):
    """What a service module provides: values, and a pure function of a Setting."""

    PACKAGES: Mapping[str, str]  # distributions that must be in the nodes' image, and the least version of each
    NEEDS: tuple[str, ...]  # services without which it is of no use

    def containers(self, setting: Setting) -> tuple[PlannedService, ...]:
        """Its containers, the one that is published first."""
        ...


def load_service(name: str) -> Service:
    """The service of that name."""
    return cast(Service, import_module(f"compose_sim.core.plan.services.{name}"))


def asked_for(texts: Iterable[str]) -> dict[str, str]:
    """Name -> value of all that is to run, those that one of them needs too, in the order of BUILT_IN."""
    given = {name: value for name, _, value in (text.partition("=") for text in texts)}
    needed = {need for name in given for need in load_service(name).NEEDS}
    return {name: given.get(name, "") for name in BUILT_IN if name in given or name in needed}


def needed_packages(texts: Iterable[str]) -> dict[str, str]:
    """Distributions that these services want in the nodes' image, with the least version of each."""
    return {package: least for name in asked_for(texts) for package, least in load_service(name).PACKAGES.items()}
