"""Describe how to open the services of a run: by a link on this machine, or through an ssh tunnel from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from compose_sim.core.plan.model import Plan, PlannedPort

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedService:
    """A service or dashboard that is reachable from this machine."""

    name: Annotated[str, "The name of the service"]
    port: Annotated[int, "The port on 127.0.0.1 of this machine"]
    url: Annotated[str, "The link, without the token"]
    tunnel: Annotated[str, "The ssh command that makes the same link work on another machine"]


def link(port: PlannedPort, *, token: str) -> str:
    """Return the link to a service; without a token, the part of the link that carries it is left out."""
    path = port.path if token else port.path.partition("?token={token}")[0]
    return f"{port.scheme}://{_LOOPBACK}:{port.host_port}{path.format(token=token)}"


def login(port: PlannedPort, *, token: str) -> str:
    """Return what to type into the login form of a service; "" if it has none."""
    return port.login.format(token=token) if token else ""


def tunnel(port: PlannedPort, *, user: str, host: str) -> str:
    """Return the command that makes the same link work on another machine."""
    return f"ssh -N -L {port.host_port}:{_LOOPBACK}:{port.host_port} {user}@{host}"


def published_services(plan: Plan, *, host: str) -> tuple[PublishedService, ...]:
    """Return the services that a run publishes. No value is secret."""
    return tuple(
        PublishedService(
            name=port.name,
            port=port.host_port,
            url=link(port, token=""),
            tunnel=tunnel(port, user=plan.login, host=host),
        )
        for port in plan.published
    )
