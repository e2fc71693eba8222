"""BatchNorm warns if several ranks train it together, each with its own batch."""

from __future__ import annotations

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.batchnorm_local import judge
from compose_sim.node.records.models import LocalBatchNorm
from tests.core.checks.rules.cluster import case
from tests.core.checks.rules.replicas import ddp, forward

NORM = LocalBatchNorm(0, ("features.1",), count=3)


def test_its_modules_are_named() -> None:
    result = judge(case({rank: [ddp(), forward(), NORM] for rank in range(2)}))
    assert result.status == WARNED
    assert result.detail.startswith("features.1 and 2 more ")
    assert result.at == ("/work/train.py", 3)


def test_a_group_of_one_rank_sees_the_whole_batch() -> None:
    assert judge(case({rank: [ddp((rank,)), forward(), NORM] for rank in range(2)})).status == NOT_APPLICABLE


def test_models_without_it_pass() -> None:
    assert judge(case({rank: [ddp(), forward()] for rank in range(2)})).status == PASSED


def test_models_that_are_not_called_are_not_judged() -> None:
    assert judge(case({rank: [ddp()] for rank in range(2)})).status == NOT_APPLICABLE
