"""What a driver's events show about a run, and how such a run is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState
from compose_sim.core.verdict.stop_reason import reason_to_stop
from compose_sim.core.verdict.verdict import is_over, judge
from tests.builders import a_plan, an_event

PLAN: Plan = replace(a_plan(nodes=2), is_driven=True, exit_codes={"93": "no node could be reached"})


def driver(kind: str, t: float, **data: Any) -> Event:
    """Return an event of the driver."""
    return Event(t=t, kind=kind, node="driver", data=data)


def state_of(*events: Event) -> ClusterState:
    """Return the state after these events, and after both nodes have started."""
    begun = [
        an_event("started", 0.0),
        an_event("node-started", 0.5, node="node-0"),
        an_event("node-started", 0.6, node="node-1"),
    ]
    return fold_all(PLAN, [*begun, *events])


def ended(t: float, code: int) -> Event:
    """Return the master's report on the end of the driver."""
    how = f"the driver ended with exit code {code}"
    return an_event("ended", t, node="master", passed=code == 0, reason=how, exit_code=code)


def stopped(t: float, number: int, code: int) -> Event:
    """Return the engine's report on the end of a node."""
    return an_event("node-stopped", t, node=f"node-{number}", exit_code=code)


def test_it_passes_without_a_node_that_was_lost() -> None:
    lost = Event(t=3.0, kind="node-lost", node="master", data={"node": "node-1", "reason": "connection closed"})
    state = state_of(lost, stopped(3.1, 1, 137), ended(9.0, 0), stopped(9.1, 0, 0))

    assert is_over(state)
    assert judge(state).word == "passed"


def test_nothing_is_over_while_a_node_runs() -> None:
    assert not is_over(state_of(ended(9.0, 0), stopped(9.1, 0, 0)))


def test_what_it_raised_is_the_cause() -> None:
    raised = driver("exception", 4.0, type="ValueError", message="no data", traceback="Traceback …")
    state = state_of(raised, ended(4.2, 1), stopped(4.3, 0, 143), stopped(4.3, 1, 143))

    verdict = judge(state)

    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert (verdict.cause.node, verdict.cause.rank) == ("driver", None)
    assert (verdict.cause.message, verdict.cause.traceback) == ("ValueError: no data", "Traceback …")


def test_what_a_driver_would_type_next_stands_with_the_cause() -> None:
    """There is no traceback: the driver ended with its own message."""
    raised = driver("exception", 4.0, type="", message="there is no ray", traceback="", hint="composesim image build")
    cause = judge(state_of(raised, ended(4.2, 90), stopped(4.3, 0, 143), stopped(4.3, 1, 143))).cause

    assert cause is not None
    assert (cause.message, cause.traceback) == ("there is no ray", "Try: composesim image build")


def test_an_exit_code_of_the_framework_is_explained() -> None:
    state = state_of(ended(4.2, 93), stopped(4.3, 0, 143), stopped(4.3, 1, 143))

    cause = judge(state).cause

    assert cause is not None
    assert cause.message == "the driver ended with exit code 93: no node could be reached"


def test_a_node_lost_just_before_is_to_blame_rather_than_what_followed() -> None:
    lost = Event(t=3.0, kind="node-lost", node="master", data={"node": "node-1", "reason": "no sign of life for 5 s"})
    raised = driver("exception", 4.0, type="ActorDiedError", message="The actor died: node-1 was lost")
    state = state_of(lost, stopped(3.1, 1, 137), raised, ended(4.2, 1), stopped(4.3, 0, 143))

    cause = judge(state).cause

    assert cause is not None
    assert (cause.node, cause.message) == ("node-1", "node-1 was killed (SIGKILL)")


@pytest.mark.parametrize("left", [0, 1])
def test_a_run_goes_on_with_the_nodes_that_are_left(left: int) -> None:
    """The wait ends only if no node is left and none comes back."""
    losses = [stopped(3.0, number, 137) for number in range(2 - left)]

    stop = reason_to_stop(state_of(*losses), PLAN, now=100.0)

    assert (stop is None) == bool(left)


def test_it_is_ready_when_the_framework_says_so_and_its_lines_are_metrics() -> None:
    ready = Event(t=2.0, kind="ready", node="master", data={"words": "2 nodes"})
    state = state_of(ready, driver("metric", 5.0, step=7, reward=21.5))

    assert state.driver is not None
    assert (state.driver.phase, state.driver.ready_at, state.driver.step) == ("running", 2.0, 7)
    assert state.metrics["reward"] == 21.5
    assert state.first_step_at == 5.0


def test_what_a_node_runs_may_begin_again_in_the_same_round() -> None:
    began = an_event("rank-started", 1.0, rank=1)
    ended_once = an_event("rank-exited", 2.0, rank=1, exit_code=1)
    again = an_event("rank-started", 3.0, rank=1)

    assert state_of(began, ended_once).ranks[1].phase == "exited"
    assert state_of(began, ended_once, again).ranks[1].phase == "starting"


def test_a_rank_that_raised_before_the_driver_ended_it_is_the_cause() -> None:
    """Horovod ends the sessions of all ranks when one has exited, and that exit may itself be a consequence."""

    def rank(number: int, kind: str, t: float, **data: Any) -> Event:
        return Event(t=t, kind=kind, node=f"node-{number}", rank=number, data=data)

    state = state_of(
        rank(0, "rank-started", 1.0),
        rank(1, "rank-started", 1.0),
        rank(1, "exception", 3.0, type="ValueError", message="no more data", traceback=""),
        rank(0, "exception", 3.1, type="HorovodInternalError", message="Horovod has been shut down", traceback=""),
        rank(0, "rank-exited", 3.2, exit_code=1, stopped=False),
        rank(1, "rank-exited", 3.3, exit_code=1, stopped=True),
        ended(4.0, 1),
    )

    cause = judge(state).cause
    assert cause
    assert (cause.node, cause.rank, cause.message) == ("node-1", 1, "ValueError: no more data")
