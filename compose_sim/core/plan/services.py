"""Define what a service beside the nodes is, plan those that are requested, and choose ports of this machine for what is published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from compose_sim.core.plan.model import Choice, Mount, PlannedPort, PlannedService
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.request.names import SERVICE_NAMES, SERVICES
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import find

FILES = "services"  # folder of the configuration files, in the run's folder
_LAST = 65535  # port


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
    """The values and the function of a service module. FRAMEWORKS may say what an image gets; otherwise these are its PACKAGES."""

    VALUE: str  # what VALUE of `--with NAME=VALUE` is; "" if the service takes none
    PACKAGES: Mapping[str, str]  # distributions that the nodes' image must have -> the oldest version that works
    NEEDS: tuple[str, ...]  # other services that it depends on

    def containers(self, context: ServiceContext) -> tuple[PlannedService, ...]:
        """Return the containers, the published one first."""


def load_service(name: str) -> Service:
    """Return the service of that name; raise SpecError if there is none, or if that of another distribution is invalid."""
    feature = find(SERVICES, name)
    if feature is None:
        raise SpecError(f"there is no service '{name}'", hint="composesim up --help")
    service: Service = feature.load()
    if missing := [part for part in (*Service.__annotations__, "containers") if not hasattr(service, part)]:
        raise SpecError(f"{feature.described} is invalid: it has no {', '.join(missing)}")
    return service


def requested_services(texts: Iterable[str]) -> dict[str, str]:
    """Return name -> value of the services and of those that they depend on; those of composesim come first, in their order."""
    given = {name: value for name, _, value in (text.partition("=") for text in texts)}
    wanted = {need: "" for name in given for need in load_service(name).NEEDS} | given
    return {name: wanted[name] for name in (*SERVICE_NAMES, *wanted) if name in wanted}


def needed_packages(texts: Iterable[str]) -> dict[str, str]:
    """Return the distributions that these services need in the nodes' image, with minimum versions."""
    return {
        package: least for name in requested_services(texts) for package, least in load_service(name).PACKAGES.items()
    }


def choose_ports(
    ports: Sequence[PlannedPort], *, requested: Mapping[str, int], listening: Mapping[int, str], shared: bool
) -> tuple[dict[str, PlannedPort], tuple[Choice, ...]]:
    """
    Return each port with the port on this machine, by name, and a Choice for each that is not the usual one.

    `listening` maps the ports that are in use to their users. If services share this machine's network (`shared`), they listen on the
    chosen port. Raises SpecError for an unknown name, and for a requested port that is in use.
    """
    for name in requested:
        if name not in {port.name for port in ports}:
            names = ", ".join(port.name for port in ports) or "nothing"
            hint = f"composesim up --with {next(iter(SERVICE_NAMES), 'NAME')} …"
            raise SpecError(f"--publish '{name}': this run publishes {names}", hint=hint)
    taken = {**listening}
    for name, number in requested.items():
        if number in taken:
            raise port_taken(name, number, taken[number], free=next_free(number, taken))
        taken[number] = f"'{name}' of this run"
    chosen, choices = {}, []
    for port in ports:
        number = requested.get(port.name) or next_free(port.port, taken)
        if port.name not in requested and number != port.port:
            why = f"{port.port} is in use by {taken[port.port]}"
            choices.append(Choice(what="port", value=f"{port.name} {number}", why=why))
        taken.setdefault(number, f"'{port.name}' of this run")
        chosen[port.name] = replace(port, host_port=number, port=number if shared else port.port)
    return chosen, tuple(choices)


def port_taken(name: str, number: int, who: str, *, free: int) -> SpecError:
    """Return the error for a port that is in use."""
    return SpecError(
        f"port {number} for '{name}' is in use by {who}",
        hint=f"composesim up --publish {name}={free} …, or find the process: ss -ltnp 'sport = :{number}'",
    )


def next_free(first: int, taken: Mapping[int, str]) -> int:
    """Return the first free port from `first` on; raise SpecError if there is none."""
    number = next((number for number in range(first, _LAST + 1) if number not in taken), 0)
    if not number:
        raise SpecError(f"this machine has no free port from {first} on", hint="ss -ltn")
    return number


def plan_services(
    spec: ClusterSpec,
    master_ports: tuple[PlannedPort, ...],
    context: ServiceContext,
    *,
    listening: Mapping[int, str],
    contained: bool,
) -> tuple[tuple[PlannedService, ...], tuple[PlannedPort, ...], tuple[Choice, ...]]:
    """
    Return the requested services and the ports of the master, with ports of this machine, and Choices about these.

    `listening` maps the ports of this machine that are in use to their users. Raises SpecError if a requested one is in use.
    """
    services: list[PlannedService] = []
    for name, value in requested_services(spec.services).items():
        services += load_service(name).containers(replace(context, value=value))
    wanted = [*master_ports, *(port for service in services for port in service.ports)]
    ports, choices = choose_ports(wanted, requested=spec.publish, listening=listening, shared=not contained)
    placed = [replace(each, ports=tuple(ports[port.name] for port in each.ports)) for each in services]
    return tuple(placed), tuple(ports[port.name] for port in master_ports), choices
