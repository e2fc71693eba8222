"""Print how to open the services of a run: a link with the token, and the command that makes it work from another machine."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from compose_sim.core.json_values import to_json
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.service_links import link, login, published_services, tunnel
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError

if TYPE_CHECKING:
    from compose_sim.core.events.events import Event


def link_lines(plan: Plan, *, token: str) -> list[str]:
    """Return two lines for each service. They contain the token of the run: print them on a terminal, never to a file."""
    width = max((len(port.name) for port in plan.published), default=0)
    lines = []
    for port in plan.published:
        credentials = login(port, token=token)
        lines.append(f"  {port.name:<{width}}  {link(port, token=token)}{f'  ({credentials})' if credentials else ''}")
        command = tunnel(port, user=plan.login, host=platform.node())
        lines.append(f"  {'':<{width}}  from another machine: {command}")
    return lines


def links_of(folder: RunFolder) -> list[str]:
    """Return the lines for the services of a run, or none if the plan cannot be read."""
    try:
        plan = folder.read_plan()
    except SpecError:
        return []
    return link_lines(plan, token=folder.read_token()) if plan.published else []


def published_by(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the services that a run publishes as JSON values, without the token."""
    try:
        services = published_services(folder.read_plan(), host=platform.node())
    except SpecError:
        return []
    return [to_json(service) for service in services]


def service_line(event: Event) -> str:
    """Return that a service has exited (the run continues without it), and the last line of its output."""
    code, output = event.data.get("exit_code"), str(event.data.get("words") or "").strip().splitlines()
    return f"the service {event.data.get('name')} exited with status {code}" + (
        f"; its last line: {output[-1]}" if output else ""
    )
