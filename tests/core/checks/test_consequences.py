"""Of several failed checks, one is the cause; the others name it."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import Case, run_checks
from compose_sim.core.checks.consequences import _MAY_FOLLOW, first_cause
from compose_sim.core.request.check_ids import IDS
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.replicas import ddp, state, step, table


@pytest.mark.parametrize(
    ("name", "failures", "cause"),
    [
        ("sampler-overlap", {"sampler-overlap"}, ""),
        ("sampler-overlap", {"sampler-overlap", "rank-confusion"}, "rank-confusion"),
        ("set-epoch", {"set-epoch", "rank-confusion"}, ""),
        ("matches-single", {"matches-single", "sampler-overlap", "rank-confusion"}, "rank-confusion"),
        ("matches-single", {"matches-single", "params-in-sync", "wrapper-bypassed"}, "wrapper-bypassed"),
        ("hang", {"hang", "collective-mismatch"}, "collective-mismatch"),
    ],
)
def test_the_first_cause_is_that_from_which_nothing_leads_back(name: str, failures: set[str], cause: str) -> None:
    assert first_cause(name, failures) == cause


def test_every_check_has_one_first_cause_even_if_all_fail() -> None:
    assert {each for name, causes in _MAY_FOLLOW.items() for each in (name, *causes)} <= set(IDS)
    for name in IDS:
        assert first_cause(first_cause(name, set(IDS)), set(IDS)) == ""


def test_a_passed_check_follows_from_nothing() -> None:
    notes = {
        rank: [
            ddp(),
            table("weight"),
            state(0, "a"),
            *(step(nth, forwards=0, reduced=0) for nth in (1, 2)),
            state(2, f"b{rank}"),
        ]
        for rank in range(2)
    }
    seen: Case = case(notes)

    follows = {result.id: result.follows for result in run_checks(seen) if result.follows}

    assert follows == {"params-in-sync": "wrapper-bypassed"}
