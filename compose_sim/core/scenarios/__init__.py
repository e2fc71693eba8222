"""Play scenarios: files whose steps are interventions in a run, and whose expectations are evaluated when the run is over.

A player is pure. It decides from events and time what to do next; the process that runs the cluster executes the decisions.
"""

from __future__ import annotations

from typing import Protocol

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Intervention
from compose_sim.core.state.state import ClusterState


class Player(Protocol):
    """Decides on interventions while a run is in progress."""

    def due(self, events: list[Event], state: ClusterState, *, now: float) -> list[tuple[str, Intervention]]:
        """
        Return the interventions that are due, each with the id that its events will have.

        Must be called regularly, even if there are no new `events`; `now` is in Unix seconds.
        """

    def observe(self, events: list[Event]) -> None:
        """Take note of the last events, after which nothing is due any more."""
