"""Decide when a step of a scenario is due."""

from __future__ import annotations

from compose_sim.core.events.events import Event
from compose_sim.core.scenarios.scenario import TriggerSpec
from compose_sim.core.state.state import ClusterState


def steps_made(state: ClusterState, rank: int) -> int:
    """
    Return how many steps training has made: the largest step that any rank has printed, or that this rank has counted.

    All ranks make the same steps, so a line of one rank holds for all. A rank starts counting again in each round. If one
    program drives all nodes, the lines of that program count.
    """
    of_rank = state.ranks.get(rank)
    printed = [value.metric.get("step") for value in state.ranks.values()]
    printed += [state.driver.step] if state.driver else []
    return max([of_rank.step or 0 if of_rank else 0, *(step for step in printed if isinstance(step, int))])


def is_training_over(state: ClusterState) -> bool:
    """Whether a script has ended successfully, or the run is being stopped."""
    driven_to_its_end = state.driver is not None and state.driver.phase == "ended"
    return bool(state.stopping) or driven_to_its_end or any(each.script_exit_code == 0 for each in state.ranks.values())


class Trigger:
    """Fires once, or repeatedly, as `at` of a step says."""

    def __init__(self, at: TriggerSpec) -> None:
        self.at = at
        self.count = 0  # how often the step was played
        self._armed = False
        self._last_turn = 0
        self._seen_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it cannot fire again."""
        return self.count >= (1 if self.at.every is None else self.at.times or float("inf"))

    def arm(self) -> None:
        """Let events count from now on, because the step before was played."""
        self._armed = True

    def observe(self, event: Event) -> None:
        """Take note of an event of the run."""
        at = self.at
        if self._armed and self._seen_at is None and event.kind == at.event:
            node = event.node or event.data.get("node")  # that wrote the event, or that the master means
            is_meant = at.node in (None, node) and at.rank in (None, event.rank)
            if is_meant and at.world_size in (None, event.data.get("world_size")):
                self._seen_at = event.t

    def fires(self, state: ClusterState, now: float) -> bool:
        """Whether the step is due. Stays true until `consume`, or until the turn of `every` is over."""
        at, since_start = self.at, now - (state.started_at if state.started_at is not None else now)
        if self.is_over:
            return False
        if at.time is not None:
            return since_start >= at.time
        if at.step is not None:
            return steps_made(state, at.rank or 0) >= at.step
        if at.event is not None:
            return self._seen_at is not None and now >= self._seen_at + (at.after or 0.0)
        assert at.every is not None
        return self._turn(since_start) > self._last_turn and since_start < (at.until or float("inf"))

    def consume(self, state: ClusterState, now: float) -> None:
        """Count the step as played."""
        self.count += 1
        self.skip(state, now)

    def skip(self, state: ClusterState, now: float) -> None:
        """Wait for the next turn of `every`, because the step cannot be played. Other triggers continue to fire."""
        if state.started_at is not None:
            self._last_turn = self._turn(now - state.started_at)

    def _turn(self, since_start: float) -> int:
        return int(since_start / self.at.every) if self.at.every else 0
