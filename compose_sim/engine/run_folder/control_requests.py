"""Send interventions to the process that runs a cluster, and commands to the agents of nodes, in files of the run folder.

A request is `requests/<time>.<id>.json`, so that names sort by time. The process that runs the cluster removes the file after
it has written the events about the outcome.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.faults.commands import Intervention, intervention_from_dict, intervention_to_dict
from compose_sim.core.faults.kind import AgentCommand
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder, read_clock
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


_TIMEOUT_S = 20.0  # an agent polls a few times per second; a busy machine may delay it
_Answer = tuple[str, str]  # phase (done, undone, failed) and why


class AgentCommands:
    """The commands of one run. One thread sends them, another one observes the answers."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._answers: dict[tuple[str, str], _Answer] = {}
        self._changed = threading.Condition()
        self._canceled = False

    def send(self, command: AgentCommand, cause: str) -> None:
        """Have the agent execute the command, or undo it, and wait for the answer. EngineError if it fails or times out."""
        key, wanted = (command.node, cause), "done" if command.on else "undone"
        with self._changed:
            if (
                self._answers.get(key, ("",))[0] != wanted
            ):  # an agent undoes some commands when it exits, before we request it
                self._answers.pop(key, None)
        file = self.write(command, cause)
        with self._changed:
            self._changed.wait_for(
                lambda: self._canceled or self._answers.get(key, ("",))[0] in (wanted, "failed"), _TIMEOUT_S
            )
            phase, why = self._answers.get(key, ("", ""))
        if phase == wanted or (self._canceled and not phase):
            return
        if command.on:
            self._folder.files.remove(file)  # so that it is not executed later
        what = f"failed to execute '{command.name}': {why}" if phase else "did not answer"
        raise EngineError(f"{command.node} {what}", hint=f"composesim logs --node {command.node}")

    def write(self, command: AgentCommand, cause: str) -> str:
        """Write the command for the agent to find, and return the file without waiting."""
        values = {"id": cause, "name": command.name, "values": dict(command.values), "on": command.on}
        file = f"control/{command.node}/{cause}.json"
        self._folder.files.replace(file, json.dumps(values))
        return file

    def observe(self, events: list[Event]) -> None:
        """Take note of the answers among new events of the run."""
        answers = {
            (event.node or "", str(event.data.get("id"))): (
                str(event.data.get("phase")),
                str(event.data.get("why", "")),
            )
            for event in events
            if event.kind == "command"
        }
        if answers:
            with self._changed:
                self._answers.update(answers)
                self._changed.notify_all()

    def cancel(self) -> None:
        """Stop waiting for answers, now and later."""
        with self._changed:
            self._canceled = True
            self._changed.notify_all()


_DETECTED_WITHIN_S = 10.0  # by then the master has noticed any loss that the fault caused; silence takes 5 s

PreviousMarks = dict[str, tuple[bool, tuple[float, float] | None]]  # node -> whether it was marked, and its _leaving


class ExpectedLosses:
    """The marks of one run. Used by the loop that follows the run and by the thread that executes interventions."""

    def __init__(self, folder: Path) -> None:
        self._clock = read_clock(SafeFolder(folder))
        self._marks = SafeFolder(folder / "control" / "absent")
        # node -> time of the run at which it was healed, and at which the mark expires
        self._leaving: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def expect(self, nodes: Iterable[str]) -> PreviousMarks:
        """Mark nodes that are about to be lost on purpose, and return the previous marks for `restore`."""
        previous: PreviousMarks = {}
        with self._lock:
            for node in nodes:
                previous[node] = (self._marks.status(node) is not None, self._leaving.pop(node, None))
                self._marks.append(node, "")
        return previous

    def restore(self, previous: PreviousMarks) -> None:
        """Undo `expect`, because the nodes were not lost after all."""
        with self._lock:
            for node, (was_marked, leaving) in previous.items():
                if not was_marked:
                    self._remove(node)
                elif leaving:
                    self._leaving[node] = leaving

    def returning(self, nodes: Iterable[str], *, started: bool) -> None:
        """Remove the marks of healed nodes once a round begins with them, or after a while if they were not `started` again."""
        now = self._clock.now()
        with self._lock:
            for node in nodes:
                self._leaving[node] = (now, math.inf if started else now + _DETECTED_WITHIN_S)

    def observe(self, events: Iterable[Event]) -> None:
        """Take note of new events of the run. Must also be called regularly if there are none."""
        now = self._clock.now()
        with self._lock:
            for event in events:
                if event.kind == "round":
                    for node in event.data.get("nodes") or ():
                        if event.t > self._leaving.get(node, (math.inf, 0.0))[0]:
                            self._remove(node)
            for node in [node for node, (_, expires) in self._leaving.items() if now > expires]:
                self._remove(node)

    def _remove(self, node: str) -> None:
        self._leaving.pop(node, None)
        self._marks.remove(node)
