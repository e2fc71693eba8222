"""What the checks could not compare is part of the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, why_no_step
from compose_sim.core.checks.run import coverage, why_inconclusive
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import ProcessGroup
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import case, file, two_nodes

JUDGED = ("params-in-sync", "matches-single", "sampler-overlap")


def results(**details: str) -> list[Result]:
    """Return a result for each check that compares something: not applicable for a reason, else passed."""
    reasons = {name.replace("_", "-"): reason for name, reason in details.items()}
    names = dict.fromkeys((*JUDGED, *reasons))
    return [replace(not_applicable(reasons[name]) if name in reasons else passed("equal"), id=name) for name in names]


def trained() -> Case:
    return case({0: [ProcessGroup(2, "gloo")], 1: [ProcessGroup(2, "gloo")]})


def test_one_check_that_compared_is_enough() -> None:
    found = coverage(
        [*results(matches_single="draws random numbers"), replace(failed("twice", fix=""), id="loss-scale")]
    )

    assert found.missing == {}


def test_what_no_check_compared_has_the_reason_and_equal_reasons_are_told_once() -> None:
    found = coverage(
        results(params_in_sync="no step", matches_single="no step", loss_scale="no step", sampler_overlap="rows")
    )

    assert found.text == "replicas and gradients not judged: no step; samples not judged: rows"


def test_what_another_check_compares_in_its_own_way_is_judged() -> None:
    sharded = replace(not_applicable("sharded", judged_by="matches-single"), id="params-in-sync")

    assert coverage([*results(), sharded]).missing == {}
    alone = coverage([*results(matches_single="draws random numbers"), sharded])
    assert alone.missing["replicas"] == "sharded"


def test_with_only_nothing_else_is_missed_and_what_was_skipped_is() -> None:
    assert coverage([], only=("hang",)).missing == {}
    assert set(coverage(results()[1:]).missing) == {"replicas"}


@pytest.mark.parametrize(
    ("found", "only", "is_strict", "expected"),
    [
        (results(), (), True, ""),
        (results(sampler_overlap="rows"), (), False, ""),
        (results(sampler_overlap="rows"), (), True, "samples not judged: rows"),
        (results(sampler_overlap="rows"), ("sampler-overlap",), False, "sampler-overlap is not applicable: rows"),
    ],
)
def test_a_verdict_needs_what_was_asked_for(
    found: Sequence[Result], only: tuple[str, ...], is_strict: bool, expected: str
) -> None:
    assert why_inconclusive(trained(), found, coverage(found), only=only, is_strict=is_strict) == expected


def test_a_script_that_is_not_distributed_is_never_green() -> None:
    found = results()

    why = why_inconclusive(case({0: [], 1: []}), found, coverage(found), only=(), is_strict=False)

    assert why.startswith("nothing distributed was seen")


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([file("read", "/work/last.pt")], ": it read /work/last.pt (train.py, line 9), and may have taken"),
        ([file("read", "/work/train.csv"), file("write", "/work/last.pt")], ""),
        ([file("read", "/work/last.pt"), OptimizerStep(step=1, optimizer=0, nth=1)], ""),
    ],
)
def test_a_script_that_makes_no_step_may_have_read_the_checkpoint_of_its_end(records: list[Record], said: str) -> None:
    found = why_no_step(two_nodes(lambda rank: records).observed)

    assert found.startswith(said) if said else found == ""
