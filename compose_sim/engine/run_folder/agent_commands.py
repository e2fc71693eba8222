"""Send commands to the agents of nodes, in files that agents read. An agent answers with an event."""

from __future__ import annotations

import json
import threading

from compose_sim.core.events.events import Event
from compose_sim.core.faults.effects import AgentCommand
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import EngineError

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
