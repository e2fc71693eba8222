"""The fold of events into the state of a run."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold, fold_all
from compose_sim.core.state.fold_ranks import count_steps
from compose_sim.core.state.state import initial_state
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
