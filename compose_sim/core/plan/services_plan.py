"""Plan the services beside the nodes, and the ports of this machine for them and the master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import Choice, PlannedPort, PlannedService
from compose_sim.core.plan.ports import choose_ports
from compose_sim.core.plan.services import ServiceContext, load_service, requested_services
from compose_sim.core.request.spec import ClusterSpec


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
