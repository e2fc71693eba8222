"""How do verbs that intervene in a run speak? They ask its process, wait until it is done, and say one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from compose_sim.cli.console import print_json
from compose_sim.cli.run_lookup import select_folder
from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Intervention
from compose_sim.engine.run_folder.control_requests import ask, new_id
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError


def run_under_way(run: str | None) -> RunFolder:
    """The folder of the run that is meant; SpecError where it is over."""
    folder = select_folder(run, elsewhere=False)
    if not folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is over", hint="composesim up --detach …")
    return folder


def intervene(folder: RunFolder, verb: str, intervention: Intervention) -> tuple[str, list[Event]]:
    """Have it done; its id, and composesim's events from then on that are about what was done."""
    request = new_id(verb)
    return request, ask(folder, intervention, request)


def tell(value: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """What was done: as JSON, or as one line."""
    if as_json:
        print_json({"schema_version": 1, **value})
    else:
        click.echo(line)
