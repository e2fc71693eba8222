"""What plays a run? A Player: told all that happens, it says what is to be done to the run, and when.

A scenario is a file (scenario.py, scenariofile.py) whose steps a ScenarioPlayer (player.py) plays, and whose expectations are
judged when the run is over (expectations/). Nothing here touches the world: the process that runs the cluster performs.
"""

from __future__ import annotations

from typing import Protocol

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Intervention
from compose_sim.core.state.state import ClusterState


class Player(Protocol):
    """Who intervenes in a run without being asked each time."""

    def due(self, events: list[Event], state: ClusterState, *, now: float) -> list[tuple[str, Intervention]]:
        """
        What is to be done now, each with the id that its events will bear.

        To be called after every look at the run, also where `events`, what is new, is empty; `now` in Unix seconds.
        """
        ...

    def hear(self, events: list[Event]) -> None:
        """What happened after the last look: the run is over, and there is nothing left to do to it."""
        ...
