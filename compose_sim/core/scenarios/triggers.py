"""Has the moment of a step come? Decided from what has happened so far; a Watch remembers what it needs to of that."""

from __future__ import annotations

from compose_sim.core.events.events import Event
from compose_sim.core.scenarios.scenario import Moment
from compose_sim.core.state.state import ClusterState


def steps_made(state: ClusterState, rank: int) -> int:
    """
    How many steps the training has made, as a rank knows it: by the lines that ranks print, or by its own count.

    All ranks make the same steps, so what one of them prints holds for all; a rank's own count begins anew in each round.
    Where one program drives all nodes, its lines tell.
    """
    of_rank = state.ranks.get(rank)
    printed = [value.metric.get("step") for value in state.ranks.values()]
    printed += [state.driver.step] if state.driver else []
    return max([of_rank.step or 0 if of_rank else 0, *(step for step in printed if isinstance(step, int))])


def is_training_over(state: ClusterState) -> bool:
    """Whether a script has come to its end, or the run is being stopped: there is nothing left to break."""
    driven_to_its_end = state.driver is not None and state.driver.phase == "ended"
    return bool(state.stopping) or driven_to_its_end or any(each.script_exit_code == 0 for each in state.ranks.values())


class Watch:
    """Waits for one moment, once or again and again."""

    def __init__(self, moment: Moment) -> None:
        """Nothing has happened yet."""
        self.moment = moment
        self.count = 0  # how often it has come
        self._armed = False
        self._last_turn = 0
        self._seen_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it can come no more."""
        return self.count >= (1 if self.moment.every is None else self.moment.times or float("inf"))

    def arm(self) -> None:
        """The step before has been played: events count from now on."""
        self._armed = True

    def see(self, event: Event) -> None:
        """One more event of the run."""
        moment = self.moment
        if self._armed and self._seen_at is None and event.kind == moment.event:
            node = event.node or event.data.get("node")  # whose own event it is, or whom the master speaks of
            is_meant = moment.node in (None, node) and moment.rank in (None, event.rank)
            if is_meant and moment.world_size in (None, event.data.get("world_size")):
                self._seen_at = event.t

    def has_come(self, state: ClusterState, now: float) -> bool:
        """Whether it is here now; `take` says that it was made use of."""
        moment, since_start = self.moment, now - (state.started_at if state.started_at is not None else now)
        if self.is_over:
            return False
        if moment.time is not None:
            return since_start >= moment.time
        if moment.step is not None:
            return steps_made(state, moment.rank or 0) >= moment.step
        if moment.event is not None:
            return self._seen_at is not None and now >= self._seen_at + (moment.after or 0.0)
        assert moment.every is not None
        return self._turn(since_start) > self._last_turn and since_start < (moment.until or float("inf"))

    def take(self, state: ClusterState, now: float) -> None:
        """It has been made use of."""
        self.count += 1
        self.let_pass(state, now)

    def let_pass(self, state: ClusterState, now: float) -> None:
        """Nothing could be made of this turn: wait for the next one. A moment that comes once stays."""
        if state.started_at is not None:
            self._last_turn = self._turn(now - state.started_at)

    def _turn(self, since_start: float) -> int:
        return int(since_start / self.moment.every) if self.moment.every else 0
