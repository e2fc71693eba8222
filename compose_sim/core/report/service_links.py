"""How does a person open what a run publishes? As a link to this machine, with the run's token, or through ssh from another one."""

from __future__ import annotations

from typing import Any

from compose_sim.core.plan.model import Plan, PlannedPort

_LOOPBACK = "127.0.0.1"


def link(port: PlannedPort, *, token: str) -> str:
    """Where it opens. Without a token what is in the link to carry it is left out."""
    path = port.path if token else port.path.partition("?token={token}")[0]
    return f"{port.scheme}://{_LOOPBACK}:{port.host_port}{path.format(token=token)}"


def login(port: PlannedPort, *, token: str) -> str:
    """What is to be typed there, in words; "" for nothing."""
    return port.login.format(token=token) if token else ""


def tunnel(port: PlannedPort, *, user: str, host: str) -> str:
    """The command that makes the same link open on another machine."""
    return f"ssh -N -L {port.host_port}:{_LOOPBACK}:{port.host_port} {user}@{host}"


def published_values(plan: Plan, *, host: str) -> list[dict[str, Any]]:
    """What is published, for JSON: nothing of it is secret."""
    return [
        {
            "name": port.name,
            "port": port.host_port,
            "url": link(port, token=""),
            "tunnel": tunnel(port, user=plan.user_name, host=host),
        }
        for port in plan.published
    ]
