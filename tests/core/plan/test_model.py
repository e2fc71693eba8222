"""Which rank a command means."""

from __future__ import annotations

import pytest

from compose_sim.core.plan.model import one_rank
from compose_sim.errors import SpecError
from tests.builders import a_plan


def test_the_only_rank_need_not_be_named() -> None:
    assert one_rank(a_plan(nodes=1), None) == ("node-0", 0)
    assert one_rank(a_plan(nodes=2), "1") == ("node-1", 1)


def test_one_of_several_ranks_must_be_named() -> None:
    with pytest.raises(SpecError, match="--rank is required: there are ranks 0, 1"):
        one_rank(a_plan(nodes=2), None)
