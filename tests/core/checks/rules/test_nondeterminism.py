"""Whether ranks can repeat their own results."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.machines import nondeterminism
from compose_sim.node.records.models import RepeatedPass
from tests.core.checks.rules.cluster import two_nodes


@pytest.mark.parametrize(
    ("differences", "status", "ranks"),
    [
        ((0.0, 0.0, 0.0, 0.0), "passed", ()),
        ((0.0, 0.0, 0.3, 0.0), "failed", (2,)),
        ((0.0, 0.0, 1e-7, 0.0), "warned", (2,)),  # rounding, as of additions in another order
        ((0.2, 0.1, 0.3, 0.0), "warned", (0, 1, 2)),  # the model
        ((0.2, 0.1, 0.0, 0.0), "warned", (0, 1)),
    ],
)
def test_only_few_ranks_that_clearly_differ_have_a_fault(
    differences: tuple[float, ...], status: str, ranks: tuple[int, ...]
) -> None:
    result = nondeterminism.judge(
        two_nodes(
            lambda rank: [
                RepeatedPass("Net", 2, True),
                RepeatedPass("Net", 3, not differences[rank], differences[rank]),
            ]
        )
    )

    assert (result.status, result.ranks) == (status, ranks)
    assert ("on node-1" in result.detail) == (status == "failed")
