"""Plan the services beside the nodes, and the ports of this machine on which they are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compose_sim.core.plan.model import Choice, PlannedPort, PlannedService
from compose_sim.core.plan.services import ServiceContext, load_service, requested_services
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

_LAST = 65535


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
            raise SpecError(f"--publish '{name}': this run publishes {names}", hint="composesim up --with jupyter …")
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
