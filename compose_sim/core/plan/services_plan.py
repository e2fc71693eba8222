"""Which containers run beside the nodes, and on which ports of this machine do they and the master open?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import CONTAINER_FOLDER, Choice, Mount, PlannedPort, PlannedService
from compose_sim.core.plan.ports import choose_ports
from compose_sim.core.plan.services import Setting, asked_for, load_service
from compose_sim.core.request.spec import ClusterSpec


def plan_services(
    spec: ClusterSpec,
    masters: tuple[PlannedPort, ...],
    *,
    run: str,
    python: str,
    user: str,
    working_directory: str,
    mounts: tuple[Mount, ...],
    has_token: bool,
    listening: Mapping[int, str],
    contained: bool,
) -> tuple[tuple[PlannedService, ...], tuple[PlannedPort, ...], tuple[Choice, ...]]:
    """
    The services that were asked for, and the ports that the master publishes, all with ports of this machine; and what to say of them.

    `listening` says which ports of this machine are taken, and by whom. SpecError where one was asked for and is.
    """
    services: list[PlannedService] = []
    for name, value in asked_for(spec.services).items():
        setting = Setting(
            run=run,
            value=value,
            python=python,
            folder=CONTAINER_FOLDER,
            working_directory=working_directory,
            user=user,
            of_nodes=mounts,
            has_token=has_token,
            masters=masters,
        )
        services += load_service(name).containers(setting)
    wanted = [*masters, *(port for service in services for port in service.ports)]
    ports, choices = choose_ports(wanted, asked=spec.publish, listening=listening, shared=not contained)
    placed = [replace(each, ports=tuple(ports[port.name] for port in each.ports)) for each in services]
    return tuple(placed), tuple(ports[port.name] for port in masters), choices
