"""How is a node told to do something to itself? By a file that its agent reads; its answer is an event."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from compose_sim.core.events.events import Event
from compose_sim.core.faults import Order
from compose_sim.engine.run_folder.folder import RunFolder, write_file
from compose_sim.errors import EngineError

_ANSWERS_WITHIN_S = 20.0  # a node looks a few times a second; a busy machine may keep it waiting
_Answer = tuple[str, str]  # phase (done, undone, failed) and why


class Orders:
    """The orders of one run. One thread gives them, another one hears the answers."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._answers: dict[tuple[str, str], _Answer] = {}
        self._news = threading.Condition()
        self._over = False

    def give(self, order: Order, cause: str) -> None:
        """Have the node do it, or undo it; returns when it says so. EngineError where it cannot, or does not answer."""
        key, wanted = (order.node, cause), "done" if order.on else "undone"
        with self._news:
            if self._answers.get(key, ("",))[0] != wanted:  # an agent that left has undone it already, and says so once
                self._answers.pop(key, None)
        path = self.leave(order, cause)
        with self._news:
            self._news.wait_for(
                lambda: self._over or self._answers.get(key, ("",))[0] in (wanted, "failed"), _ANSWERS_WITHIN_S
            )
            phase, why = self._answers.get(key, ("", ""))
        if phase == wanted or (self._over and not phase):
            return
        what = f"{order.node} could not do '{order.name}': {why}" if phase else f"{order.node} did not answer"
        if order.on:
            path.unlink(missing_ok=True)  # so that it does not come about later
        raise EngineError(what, hint=f"composesim logs --node {order.node}")

    def leave(self, order: Order, cause: str) -> Path:
        """Write it down for the node to find when it looks, and wait for nothing; the file."""
        values = {"id": cause, "name": order.name, "values": dict(order.values), "on": order.on}
        path = self._folder.path / "orders" / order.node / f"{cause}.json"
        write_file(path, json.dumps(values))
        return path

    def hear(self, events: list[Event]) -> None:
        """What is new in the run."""
        answers = {
            (event.node or "", str(event.data.get("id"))): (
                str(event.data.get("phase")),
                str(event.data.get("why", "")),
            )
            for event in events
            if event.kind == "order"
        }
        if answers:
            with self._news:
                self._answers.update(answers)
                self._news.notify_all()

    def give_up(self) -> None:
        """Wait for no answer any more, now and later."""
        with self._news:
            self._over = True
            self._news.notify_all()
