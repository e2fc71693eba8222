"""A step whose gradients no call of the wrapper prepared is wrong only if ranks differ afterwards."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED
from compose_sim.core.checks.rules.wrapping import wrapper_bypassed
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, ddp, state, step, table


@pytest.mark.parametrize(("after", "expected"), [("bc", FAILED), ("bb", PASSED)])
def test_gradients_without_a_call_of_the_wrapper_fail_where_ranks_part(after: str, expected: str) -> None:
    ranks = {
        rank: [ddp(), table("weight"), state(0, "a"), step(1, forwards=0, reduced=0), state(1, after[rank]), step(2)]
        for rank in range(2)
    }
    result = wrapper_bypassed.judge(case(ranks))
    assert result.status == expected
    assert (at(result) == AT) is (expected == FAILED)


@pytest.mark.parametrize(("retained", "expected"), [(0, FAILED), (1, PASSED)])
def test_a_second_backward_of_a_graph_of_its_own_went_beside_the_wrapper(retained: int, expected: str) -> None:
    noted = step(1, backwards=2, retained=retained)
    ranks = {rank: [ddp(), table("weight"), state(0, "a"), noted, state(1, "bc"[rank]), step(2)] for rank in range(2)}
    assert wrapper_bypassed.judge(case(ranks)).status == expected


def test_a_model_that_was_never_stepped_is_not_judged() -> None:
    assert wrapper_bypassed.judge(case({rank: [ddp()] for rank in range(2)})).status == NOT_APPLICABLE
    assert wrapper_bypassed.judge(case({rank: [step(1)] for rank in range(2)})).status == NOT_APPLICABLE
