"""Send interventions from any shell to the process that runs a cluster, in files in RUNFOLDER/requests.

A request is `requests/<time>.<id>.json`, so that names sort by time. The process that runs the cluster removes the file after
it has written the events about the outcome.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.faults.commands import Intervention, intervention_from_dict, intervention_to_dict
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import OWN_EVENTS
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import ComposesimError, EngineError, EnvironmentMissingError, SpecError

_POLL_S = 0.02


def new_id(verb: str) -> str:
    """Return an id for a request, which is also the id of the fault that it injects."""
    return f"{verb}-{secrets.token_hex(3)}"


def send_request(folder: RunFolder, intervention: Intervention, request: str) -> list[Event]:
    """
    Have the process of the run execute an intervention, and return the events that it wrote in the meantime.

    Raises SpecError if the run is not running, or refuses the request as invalid; EngineError if the run ended first, or
    failed to execute it; EnvironmentMissingError if the host lacks something that the request needs.
    """
    if not folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is over", hint="composesim ps --all")
    over = end_of(folder)
    events = folder.files.status(OWN_EVENTS)
    pending = f"requests/{time.time_ns():020d}.{request}.json"
    folder.files.replace(pending, json.dumps({"id": request, **intervention_to_dict(intervention)}))
    _wait(pending, over, folder)
    lines = folder.files.read_bytes(OWN_EVENTS, offset=events.st_size if events else 0).splitlines()
    seen = [event for event in (parse_event(line.decode("utf-8", "replace")) for line in lines) if event]
    refused = next((event.data for event in seen if event.kind == "refused" and event.data.get("id") == request), None)
    if refused:
        errors: dict[object, type[ComposesimError]] = {2: SpecError, 4: EnvironmentMissingError}
        raise errors.get(refused.get("exit_code"), EngineError)(
            str(refused["message"]), evidence=str(refused.get("evidence", "")), hint=str(refused.get("hint", ""))
        )
    return seen


def _wait(pending: str, over: threading.Event, folder: RunFolder) -> None:
    try:
        while folder.files.status(pending):
            if over.wait(_POLL_S) and folder.files.status(pending):
                raise EngineError(
                    f"the run '{folder.name}' ended before it handled the request",
                    hint=f"composesim report --run {folder.name}",
                )
    finally:
        folder.files.remove(pending)


class ControlRequests:
    """The requests of one run, as the process that runs the cluster reads them."""

    def __init__(self, folder: RunFolder) -> None:
        self._files = folder.files
        self._seen: set[str] = set()

    def new(self) -> Iterator[tuple[str, str, Intervention | None]]:
        """
        Yield id, file and intervention of each new request, oldest first; the intervention is None if it is invalid.

        Remove the file once the request has been handled: the shell that wrote it then knows.
        """
        for name in self._files.files("requests", ".json"):
            if name not in self._seen:
                self._seen.add(name)
                file, parts = f"requests/{name}", name.split(".")
                with suppress(FileNotFoundError):  # the shell that sent it was interrupted
                    yield parts[1] if len(parts) == 3 else name.removesuffix(".json"), file, _read(self._files, file)


def _read(files: SafeFolder, name: str) -> Intervention | None:
    """Return the intervention in a file, or None if it is invalid; FileNotFoundError if the file is gone."""
    try:
        return intervention_from_dict(files.read_json(name))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, SpecError):
        return None
