"""Of several failed checks, one is the cause; the others name it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import FAILED, WARNED, Case, failed, warned
from compose_sim.core.checks.run import CHECKS, confirmed, first_cause, run_checks
from compose_sim.core.request.names import CHECK_IDS
from compose_sim.node.records.gradients import ParameterNames
from compose_sim.node.records.process_groups import ProcessGroup
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.replicas import ddp, state, step, table

GROUP = ProcessGroup(world_size=2, backend="gloo")


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


def test_a_warning_that_each_rank_is_right_does_not_follow_from_replicas_that_differ() -> None:
    assert first_cause("matches-single", {"params-in-sync"}) == "params-in-sync"
    assert first_cause("matches-single", {"params-in-sync"}, is_warning=True) == ""
    assert (
        first_cause("matches-single", {"params-in-sync", "gradient-clipping"}, is_warning=True) == "gradient-clipping"
    )


def test_every_check_has_one_first_cause_even_if_all_fail() -> None:
    assert {name for each in CHECKS for name in (each.id, *each.may_follow)} <= set(CHECK_IDS)
    for name in CHECK_IDS:
        assert first_cause(first_cause(name, set(CHECK_IDS)), set(CHECK_IDS)) == ""


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


@pytest.mark.parametrize(("line", "status"), [(7, FAILED), (9, WARNED)])
def test_a_warning_that_one_rank_confirms_fails_and_is_the_cause(line: int, status: str) -> None:
    exact = replace(warned("4 times the mean", fix="divide", at=("/work/t.py", 7)), id="gradient-mean")
    vague = replace(failed("4 times", fix="scale", at=("/work/t.py", line)), id="loss-scale")
    assert [result.status for result in confirmed([exact, vague])] == [status, FAILED]


def test_parameters_have_the_names_that_the_script_gives_them() -> None:
    held = table("0 of group 0", "1 of group 0", model=None)
    named = ParameterNames(0, (("1 of group 0", "head.bias"),))
    notes = {
        rank: [
            GROUP,
            held,
            named,
            *(each for nth in range(3) for each in (state(nth, "a", f"b{nth * rank}"), step(nth + 1))),
        ]
        for rank in range(2)
    }
    found = next(result for result in run_checks(case(notes)) if result.id == "params-in-sync")
    assert "parameter head.bias (4×2) differs" in found.detail


def test_every_check_is_listed_once_in_the_order_of_ids() -> None:
    assert tuple(each.id for each in CHECKS) == CHECK_IDS
