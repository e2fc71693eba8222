"""The fold of events into the state of a run."""

from __future__ import annotations

from compose_sim.core.state.fold import fold_all
from tests.builders import a_plan, an_event


def test_what_happens_after_the_verdict_does_not_prolong_the_run() -> None:
    """The master may end after the report was made, and a report made again from the events must be the same."""
    events = [
        an_event("started", 0.0),
        an_event("verdict", 5.0, verdict="passed"),
        an_event("node-stopped", 6.0, node="master", exit_code=0),
    ]

    assert fold_all(a_plan(), [*events[:1], an_event("usage", 4.0), *events[1:]]).last_t == 4.0
