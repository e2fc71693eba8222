"""`composesim.agree`, by what two ranks hold."""

from __future__ import annotations

from typing import Any

import pytest

import compose_sim
from compose_sim.agreement import disagreement, leaves


def test_the_paths_that_differ_are_named_with_the_ranks() -> None:
    held = {0: {"weight": "a", "bias": "x"}, 1: {"weight": "a", "bias": "y"}, 2: {"weight": "a", "bias": "x"}}

    assert disagreement(held) == "the ranks disagree on 1 of 2 values:\n  bias: ranks 0, 2: x; rank 1: y"


def test_values_are_compared_leaf_by_leaf() -> None:
    assert list(leaves({"a": [1, (2.5, "x")], "b": None})) == [
        ("a[0]", "1"),
        ("a[1][0]", "2.5"),
        ("a[1][1]", "'x'"),
        ("b", "None"),
    ]


def ranks_that_disagree() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    found: dict[str, Any] = {"same": compose_sim.agree({"step": 3, "model": model})["step"]}
    with torch.no_grad():
        model.bias[rank] += 1e-7 + rank
    for name, value in (("model", model), ("number", rank), ("names", ["a"] * (1 + rank))):
        try:
            compose_sim.agree(value)
        except AssertionError as error:
            found[name] = str(error)
    dist.destroy_process_group()
    return found


@pytest.mark.train
def test_ranks_that_disagree_all_raise() -> None:
    first, second = compose_sim.run(ranks_that_disagree, nodes=2, engine="local")

    assert first == second
    assert first["same"] == 3
    assert first["number"].endswith("value: rank 0: 0; rank 1: 1")
    assert "disagree on 1 of 2 values:\n  bias: rank 0: float32[2]" in first["model"]
    assert "[1]: rank 0: nothing; rank 1: 'a'" in first["names"]
