"""Send interventions from any shell to the process that runs a cluster, by files in RUNFOLDER/requests.

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
from pathlib import Path

from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.faults.commands import Intervention, intervention_from_dict, intervention_to_dict
from compose_sim.engine.run_folder.folder import RunFolder, write_file
from compose_sim.engine.run_folder.record import end_of
from compose_sim.errors import ComposesimError, EngineError, EnvironmentMissingError, SpecError

_POLL_S = 0.02


def new_id(verb: str) -> str:
    """Return an id for a request, which is also the id of the fault that it injects."""
    return f"{verb}-{secrets.token_hex(3)}"


def send_request(folder: RunFolder, intervention: Intervention, request: str) -> list[Event]:
    """
    Have the process of the run execute an intervention, and return the events that it wrote in the meantime.

    Raises SpecError if the run is not running, or refuses the request as invalid; EngineError if the run ended first, or
    failed to execute it; EnvironmentMissingError if the host lacks something that it needs.
    """
    if not folder.is_claimed():
        raise SpecError(f"the run '{folder.name}' is over", hint="composesim ps --all")
    over = end_of(folder)
    events = folder.path / "events" / "composesim.jsonl"
    begin = events.stat().st_size if events.exists() else 0
    text = json.dumps({"id": request, **intervention_to_dict(intervention)})
    pending = folder.path / "requests" / f"{time.time_ns():020d}.{request}.json"
    write_file(pending, text, mode=0o600)
    _wait(pending, over, folder)
    seen = _events_from(events, begin)
    refused = next((event.data for event in seen if event.kind == "refused" and event.data.get("id") == request), None)
    if refused:
        errors: dict[object, type[ComposesimError]] = {2: SpecError, 4: EnvironmentMissingError}
        raise errors.get(refused.get("exit_code"), EngineError)(
            str(refused["message"]), evidence=str(refused.get("evidence", "")), hint=str(refused.get("hint", ""))
        )
    return seen


def _wait(pending: Path, over: threading.Event, folder: RunFolder) -> None:
    try:
        while pending.exists():
            if over.wait(_POLL_S) and pending.exists():
                raise EngineError(
                    f"the run '{folder.name}' ended before it handled the request",
                    hint=f"composesim report --run {folder.name}",
                )
    finally:
        pending.unlink(missing_ok=True)


def _events_from(path: Path, begin: int) -> list[Event]:
    with path.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return [event for event in map(parse_event, lines) if event]


class ControlRequests:
    """The requests of one run, as the process that runs the cluster reads them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder.path / "requests"
        self._seen: set[str] = set()

    def new(self) -> Iterator[tuple[str, Path, Intervention | None]]:
        """Yield id, file and intervention of each new request, oldest first; the intervention is None if it is invalid."""
        with suppress(FileNotFoundError):
            for path in sorted(self._folder.glob("*.json")):
                if path.name in self._seen:
                    continue
                self._seen.add(path.name)
                with suppress(FileNotFoundError):  # the shell that sent it was interrupted
                    yield path.name.split(".")[1] if path.name.count(".") == 2 else path.stem, path, _read(path)


def _read(path: Path) -> Intervention | None:
    """Return the intervention in a file, or None if it is invalid; FileNotFoundError if the file is gone."""
    try:
        values = json.loads(path.read_text())
        values.pop("id", None)
        return intervention_from_dict(values)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
