"""Parameters that were added after the wrap are wrong if ranks differ in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.wrapping import params_after_wrap
from tests.core.checks.rules.cluster import Records, case
from tests.core.checks.rules.replicas import ddp, state, step, table


def training(rank: int, how: str, after: str) -> Records:
    noted = step(1, **{how: ("adapter.weight",)})
    return [ddp(), table("weight", "adapter.weight"), state(0, "a", "a"), noted, state(1, "b", after[rank]), step(2)]


@pytest.mark.parametrize(("how", "word"), [("new", "added"), ("replaced", "replaced"), ("unfrozen", "unfrozen")])
def test_a_parameter_that_changed_after_the_wrap_and_parts_is_named(how: str, word: str) -> None:
    result = params_after_wrap.judge(case({rank: training(rank, how, "xy") for rank in range(2)}))
    assert result.status == FAILED
    assert f"adapter.weight was {word} after" in result.detail


def test_one_that_the_script_reduces_itself_passes() -> None:
    assert params_after_wrap.judge(case({rank: training(rank, "new", "xx") for rank in range(2)})).status == PASSED


def test_one_that_was_replaced_fails_with_the_run() -> None:
    notes = [ddp(), table("weight"), state(0, "a"), step(1, replaced=("weight",))]
    assert params_after_wrap.judge(case({rank: notes for rank in range(2)}, verdict="failed")).status == FAILED


def test_without_a_later_step_nothing_is_said() -> None:
    notes = [ddp(), table("weight"), state(0, "a"), step(1, new=("other",))]
    assert params_after_wrap.judge(case({rank: notes for rank in range(2)})).status == NOT_APPLICABLE


@pytest.mark.parametrize(("since", "status"), [(1, FAILED), (2, PASSED)])
def test_parameters_that_took_the_place_of_those_of_the_optimizer_fail_if_no_step_has_them(
    since: int, status: str
) -> None:
    steps = [replace(step(nth), left_out=("fc.weight",) if nth >= since else ()) for nth in range(1, 4)]

    result = params_after_wrap.judge(case({rank: [ddp(), *steps] for rank in range(2)}))

    assert result.status == status
    assert ("fc.weight" in result.detail) == (status == FAILED)
