"""Send an intervention to the process of a run, wait until it has been executed, and print the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.cli.console import echo, print_json
from compose_sim.cli.run_lookup import select_folder
from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Intervention
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError


def running_folder(run: str | None) -> RunFolder:
    """Return the folder of a run that is running; SpecError if it is over."""
    folder = select_folder(run, elsewhere=False)
    if not folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is over", hint="composesim up --detach …")
    return folder


def intervene(folder: RunFolder, verb: str, intervention: Intervention) -> tuple[str, list[Event]]:
    """Have an intervention executed; return its id, and the events that composesim has written since."""
    request = new_id(verb)
    return request, send_request(folder, intervention, request)


def event_of(kind: str, request: str, events: list[Event]) -> Event:
    """Return the first event of this kind that a request caused."""
    return next(event for event in events if event.kind == kind and event.data["id"] == request)


def print_result(value: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """Print the value as JSON, or else the line."""
    if as_json:
        print_json({"schema_version": 1, **value})
    else:
        echo(line)
