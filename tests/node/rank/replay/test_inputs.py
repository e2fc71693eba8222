"""Whether one rank is given the batches of all ranks together, however these divide them."""

from __future__ import annotations

import pytest
import torch

from compose_sim.node.rank.replay.inputs import Hashes, Inputs, are_joined, held_by, replicated

WHOLE = torch.arange(48.0).reshape(8, 6) / 7


def hashes(*given: torch.Tensor) -> Hashes:
    """Return the hashes of one model that is called with each of these tensors."""
    inputs, model = Inputs(), torch.nn.Linear(6, 1)
    for each in given:
        assert inputs.add(model, (each,))
    return inputs.take(0)


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (WHOLE.chunk(4), True),
        (WHOLE.chunk(3, dim=1), True),  # slices of each sequence
        ([WHOLE[rank::2] for rank in range(2)], True),
        ([WHOLE, WHOLE], True),  # all ranks have all samples
        ([WHOLE[:4], WHOLE[:4], WHOLE[4:], WHOLE[4:]], True),  # two ranks for each part
        ([WHOLE[:4], WHOLE[3:7]], False),
        ([WHOLE[:4], WHOLE[:4], WHOLE[4:]], False),
    ],
)
def test_ranks_divide_a_batch_in_any_way(parts: list[torch.Tensor], joined: bool) -> None:
    assert are_joined(hashes(WHOLE), [hashes(part) for part in parts]) is joined


def test_parts_of_a_batch_may_be_equal() -> None:
    twice = torch.cat([WHOLE, WHOLE], dim=1)

    assert are_joined(hashes(twice), [hashes(part) for part in twice.chunk(4, dim=1)])


def test_several_micro_batches_are_one_batch() -> None:
    assert are_joined(hashes(*WHOLE.chunk(2)), [hashes(*part.chunk(4)) for part in WHOLE.chunk(2)])


def test_what_models_compute_and_what_their_parts_are_given_is_left_out() -> None:
    inputs, model = Inputs(), torch.nn.Sequential(torch.nn.Linear(6, 6))
    assert inputs.add(model, (WHOLE,))
    assert not inputs.add(model[0], (WHOLE,))
    assert inputs.add(torch.nn.Linear(6, 1), (model(WHOLE),))
    assert inputs.take(0) == hashes(WHOLE)


def test_a_batch_of_a_loader_is_not_compared() -> None:
    inputs, model = Inputs(), torch.nn.Linear(6, 1)
    inputs.fetched()
    assert not inputs.add(model, (WHOLE,))
    assert inputs.take(0) == {}
    with torch.no_grad():
        inputs.fetched()  # of an evaluation
    assert inputs.add(model, (WHOLE,))
    assert inputs.take(0) == hashes(WHOLE)


def test_parameters_are_held_whole_or_in_parts() -> None:
    norm, weight = torch.ones(6), torch.randn(8, 6)
    whole = held_by([norm, weight])
    parts = [held_by([norm, part]) for part in weight.chunk(4)]

    assert whole is not None
    assert replicated(whole, [part or [] for part in parts]) == [True, False]
    assert replicated(whole, [part or [] for part in parts[:3]]) is None  # something is missing
    assert replicated(whole[1:], [(part or [])[1:] for part in parts]) is None  # nothing is held by all
    assert held_by([weight.to_sparse()]) is None
