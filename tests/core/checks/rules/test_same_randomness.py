"""Equal generator states before draws for samples are warned of; few numbers, which may decide for all ranks, are not."""

from __future__ import annotations

from typing import Any

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.same_randomness import judge
from tests.core.checks.rules.loading import epoch, loader
from tests.core.checks.rules.replicas import Notes, case, ddp


def fed(state: int, number: int, drew: int = 64) -> dict[str, Any]:
    return {"kind": "fed", "model": 0, "forward": number, "rows": [1, 2], "state": state, "drew": drew}


def drawn(state: int, fetch: int, count: int = 8) -> dict[str, Any]:
    states = {"torch": [state, count]} if count else {}
    return {"kind": "drawn", "loader": 0, "epoch": 0, "fetch": fetch, "size": 2, "worker": 0, "states": states}


def loaded(*notes: dict[str, Any]) -> Notes:
    return [ddp(), loader(), *notes, *epoch(range(8))]


def test_dropout_with_equal_states_is_warned_of() -> None:
    result = judge(case({rank: [ddp(), fed(5, 0), fed(6, 1)] for rank in range(2)}))
    assert result.status == WARNED
    assert "ranks 0 and 1 drew the same random numbers in the model's forward (dropout)" in result.detail


def test_augmentation_with_equal_states_is_warned_of() -> None:
    result = judge(case({rank: loaded(drawn(5, 0), drawn(6, 1)) for rank in range(2)}))
    assert result.status == WARNED
    assert "(augmentation)" in result.detail
    assert result.line == 12


def test_states_of_their_own_pass() -> None:
    assert judge(case({rank: loaded(drawn(5 + rank, 0), drawn(7 + rank, 1)) for rank in range(2)})).status == PASSED


def test_a_number_for_the_whole_batch_is_not_judged() -> None:
    assert (
        judge(case({rank: [ddp(), fed(5, 0, drew=1), fed(6, 1, drew=1)] for rank in range(2)})).status == NOT_APPLICABLE
    )
    assert judge(case({rank: loaded(drawn(5, 0, count=0)) for rank in range(2)})).status == NOT_APPLICABLE
