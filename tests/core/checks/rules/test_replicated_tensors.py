"""Whether tensors that ranks declare replicated are equal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compose_sim.core.checks.rules.replicated_tensors import judge
from compose_sim.node.records.precautions import ReplicatedTensor
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.replicas import AT


def inputs(*hashes: str, is_input: bool = True) -> list[ReplicatedTensor]:
    return [ReplicatedTensor((0, 1), number, (8, 4), each, is_input, AT) for number, each in enumerate(hashes)]


@pytest.mark.parametrize(
    ("other", "status"),
    [
        (inputs("a", "b", "c"), "passed"),
        (inputs("d", "e", "f"), "failed"),
        (inputs("a", "b", "f"), "passed"),  # one of them may be rounding
        (inputs("d", "e", "f", is_input=False), "failed"),  # as the first rank says
    ],
)
def test_the_ranks_of_a_mesh_get_the_same_inputs(other: Sequence[ReplicatedTensor], status: str) -> None:
    assert judge(case({0: inputs("a", "b", "c"), 1: other})).status == status


def test_parameters_alone_are_no_inputs() -> None:
    assert judge(case({rank: inputs(str(rank), is_input=False) for rank in range(2)})).status == "not-applicable"
