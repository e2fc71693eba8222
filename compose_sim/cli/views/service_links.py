"""What is said of what a run publishes? A link each, with the token that opens it, and the way to it from another machine."""

from __future__ import annotations

import platform
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.json_values import to_json
from compose_sim.core.report.service_links import link, login, published_services, tunnel
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError


def link_lines(plan: Plan, *, token: str) -> list[str]:
    """Two lines each, for a terminal: they hold the run's token, and are never written to a file."""
    width = max((len(port.name) for port in plan.published), default=0)
    lines = []
    for port in plan.published:
        typed = login(port, token=token)
        lines.append(f"  {port.name:<{width}}  {link(port, token=token)}{f'  ({typed})' if typed else ''}")
        elsewhere = tunnel(port, user=plan.user_name, host=platform.node())
        lines.append(f"  {'':<{width}}  from another machine: {elsewhere}")
    return lines


def links_of(folder: RunFolder) -> list[str]:
    """Those of a run, by its folder."""
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


def service_words(event: Event) -> str:
    """That something beside the nodes has ended, which the run does not mind, and what it said last."""
    code, said = event.data.get("exit_code"), str(event.data.get("words") or "").strip().splitlines()
    return f"the service {event.data.get('name')} ended with exit code {code}" + (f": {said[-1]}" if said else "")
