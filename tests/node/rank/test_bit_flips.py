"""Layers of a rank that compute with flipped bits until the fault is healed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.train


def test_results_are_wrong_now_and_then_until_the_note_is_removed(tmp_path: Path) -> None:
    import torch

    from compose_sim.node.rank import bit_flips

    note = tmp_path / "note"
    note.touch()
    torch.manual_seed(0)
    model, inputs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.ones(2, 4)
    right = model(inputs)
    bit_flips.begin(note)
    results = [model(inputs) for _ in range(200)]

    assert 10 < sum(not torch.equal(each, right) for each in results) < 100  # one call in four; 7 sigma
    for each in results:
        each.sum().backward()  # autograd does not notice
    note.unlink()
    assert all(torch.equal(model(inputs), right) for _ in range(50))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_element_changes_by_at_most_its_own_size(dtype: str) -> None:
    import torch

    from compose_sim.node.rank import bit_flips

    values = torch.ones(8, dtype=getattr(torch, dtype))
    bit_flips.flip_one(torch, values)

    assert sorted(values.tolist()) == [1.0] * 7 + [1.5]


def test_whole_numbers_are_left_alone() -> None:
    import torch

    from compose_sim.node.rank import bit_flips

    values = torch.ones(8, dtype=torch.int64)
    bit_flips.flip_one(torch, values)

    assert values.sum() == 8
