"""The fold of events into the state of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold, fold_all
from compose_sim.core.state.fold_ranks import count_steps
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.core.verdict.verdict import is_over, judge, reason_to_stop
from tests.builders import a_plan, an_event
from tests.core.story import Story


def test_what_happens_after_the_verdict_does_not_prolong_the_run() -> None:
    """The master may end after the report was made, and a report made again from the events must be the same."""
    events = [
        an_event("started", 0.0),
        an_event("verdict", 5.0, verdict="passed"),
        an_event("node-stopped", 6.0, node="master", exit_code=0),
    ]

    assert fold_all(a_plan(), [*events[:1], an_event("usage", 4.0), *events[1:]]).last_t == 4.0


def test_what_was_not_read_before_the_verdict_does_not_prolong_the_run() -> None:
    """A node that is killed may write its last event while the report is made of the others."""
    read, unread = an_event("usage", 4.0), an_event("usage", 4.5)

    events = [an_event("started", 0.0), read, unread, an_event("verdict", 5.0, verdict="failed", last_t=4.0)]

    assert fold_all(a_plan(), events).last_t == 4.0


def test_a_node_that_has_stopped_stays_so_when_its_own_report_is_read_late() -> None:
    stopped, reported = (
        an_event(kind, t, node="node-0", exit_code=0) for kind, t in (("node-stopped", 6.0), ("node-exited", 5.0))
    )

    assert fold_all(a_plan(), [an_event("started", 0.0), stopped, reported]).nodes["node-0"].phase == "exited"


def test_the_steps_of_a_node_are_those_of_all_rounds_together() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1).round(1.0, 0, 1)
    story.tell(2.0, "step", 0, step=7).tell(2.0, "step", 1, step=6).round(3.0, 0, 1).tell(4.0, "step", 0, step=5)

    assert {name: node.steps for name, node in story.state.nodes.items()} == {"node-0": 12, "node-1": 6}


def test_a_rank_that_stalls_reports_the_steps_that_no_event_did() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1).round(1.0, 0, 1).tell(2.0, "step", 0, step=1)
    state = story.tell(20.0, "stalled", 0, since_s=15.0, steps=12).state

    assert (state.nodes["node-0"].steps, state.ranks[0].step, state.nodes["node-1"].steps) == (12, 12, 0)


def test_steps_that_were_counted_at_the_end_do_not_change_what_else_is_known() -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1).round(1.0, 0, 1).tell(2.0, "step", 0, step=3)
    before = story.round(3.0, 0).tell(4.0, "rank-exited", 0, signal=9).state
    after = count_steps(before, {("node-0", 0, 0): 4, ("node-1", 1, 0): 2, ("node-0", 0, 1): 1, ("nowhere", 9, 0): 5})

    assert {name: node.steps for name, node in after.nodes.items()} == {"node-0": 5, "node-1": 2}
    assert (after.ranks[0].phase, after.ranks[0].step) == ("exited", 1)
    assert (after.first_step_at, after.last_t, after.failures) == (before.first_step_at, 4.0, before.failures)


def test_metrics_of_ever_new_names_are_ignored() -> None:
    """Each line would cost more than the one before."""
    plan = a_plan()
    lines = [an_event("metric", t=number, rank=0, step=number, **{f"loss{number}": 0.5}) for number in range(3000)]
    state = fold_all(plan, lines)

    assert len(state.metrics) == 1000
    assert state.metrics["loss0"] == 0.5
    last = fold_all(plan, [*lines, an_event("metric", t=3000, rank=0, loss0=0.25)])
    assert last.metrics["loss0"] == 0.25


_NUMBERS = st.dictionaries(st.sampled_from(["loss", "lr"]), st.floats(0, 1), min_size=1)
_LINES = st.one_of(
    st.builds(lambda step, values: ("metric", {"step": step, **values}), st.integers(0, 9), _NUMBERS),
    st.builds(lambda values: ("metric", {"note": "no step", **values}), _NUMBERS),
    st.builds(lambda step, values: ("numbers", {"step": step, "values": values}), st.none(), _NUMBERS),
    st.just(("log", {"line": "x"})),
    st.just(("step", {"step": 3})),
)


@given(st.lists(st.tuples(_LINES, st.integers(0, 1), st.sampled_from([None, 0, 1, 2])), max_size=30))
def test_lines_change_the_state_together_as_they_do_one_by_one(
    lines: list[tuple[tuple[str, dict], int, int | None]],
) -> None:
    story = Story(a_plan(nodes=2)).starts(0.0, 0, 1).round(1.0, 0, 1).tell(2.0, "step", 0, step=1).round(3.0, 0, 1)
    events = [
        Event(t=4.0 + number, kind=kind, node=f"node-{rank}", rank=rank, generation=generation, data=data)
        for number, ((kind, data), rank, generation) in enumerate(lines)
    ]
    told = [*story.events, *events]

    assert fold_all(story.plan, told) == reduce(fold, told, initial_state(story.plan))


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
