"""Whether a loader gives one rank the samples that all ranks were given, and whether that can be told."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader, Sampler, Subset, TensorDataset, WeightedRandomSampler

from compose_sim.node.rank.replay.batch_ids import Passage
from compose_sim.node.rank.replay.chosen_samples import Choices, Numbering, random_states

DATA = TensorDataset(torch.arange(12.0))


def passages(*samples: list[int], states: list[int] | None = None, base: int = 12) -> dict[int, Passage]:
    """Return what each rank has recorded of a passage: its samples in one batch."""
    begun = random_states() if states is None else states
    return {
        rank: Passage(0, 0, samples={0: mine}, base=["TensorDataset", base], random=begun, ended=True)
        for rank, mine in enumerate(samples)
    }


def others(loader: DataLoader, recorded: dict[int, Passage], choices: Choices | None = None) -> int | None:
    found = (choices or Choices()).compared(loader, recorded, None)
    return found.others if found else None


def test_samples_of_parts_are_numbered_in_the_whole_data_set() -> None:
    part = Subset(Subset(DATA, [9, 8, 7, 6]), torch.tensor([3, 1]))
    assert Numbering(part)([0, 1, 1]) == [6, 8, 8]
    assert Numbering(part).base == ["TensorDataset", 12]
    assert Numbering(part)([5]) == []


def test_what_one_rank_would_draw_is_compared_as_a_multiset() -> None:
    loader = DataLoader(Subset(DATA, [5, 5, 2, 7]), batch_size=2)
    assert others(loader, passages([5, 2], [7, 5])) == 0
    assert others(loader, passages([5, 2], [2, 4])) == 2
    found = Choices().compared(loader, passages([5, 2], [7, 5]), None)
    assert found is not None
    assert (found.drawn, found.shared) == (4, 1)


def test_random_states_and_data_must_be_alike() -> None:
    loader = DataLoader(Subset(DATA, [5, 5, 2, 7]))
    assert others(loader, passages([5, 2], base=6)) is None
    choices, now = Choices(), random_states()
    assert others(loader, passages([5, 2], states=now), choices) == 0
    assert others(loader, passages([5, 2], states=[now[0] + 1, *now[1:]]), choices) is None


def test_a_generator_of_which_nothing_was_drawn_may_differ() -> None:
    loader, choices, now = DataLoader(Subset(DATA, [5, 5, 2, 7])), Choices(), random_states()
    elsewhere = [now[0], now[1] + 1, now[2]]
    assert others(loader, passages([5, 2], states=elsewhere), choices) == 0
    assert others(loader, passages([5, 2], states=elsewhere), choices) == 0
    before = random.getstate()
    random.random()
    assert others(loader, passages([5, 2], states=elsewhere), choices) is None
    random.setstate(before)


def test_nothing_is_drawn_from_the_scripts_generators() -> None:
    for generator in (None, torch.Generator().manual_seed(3)):
        sampler = WeightedRandomSampler(torch.ones(12).tolist(), 12, generator=generator)
        before = random_states(), generator.get_state() if generator else torch.zeros(1)
        found = others(DataLoader(DATA, sampler=sampler), passages([5, 2]))
        assert (found is None) == (generator is not None)  # whose state at that time is not known
        assert random_states() == before[0]
        assert generator is None or torch.equal(generator.get_state(), before[1])


class Counting(Sampler[int]):
    """A sampler that changes when it is iterated."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError

    def __len__(self) -> int:
        return 12


def test_samplers_of_the_script_are_left_alone() -> None:
    indices: Iterable[int] = Counting()
    assert others(DataLoader(DATA, sampler=indices), passages([5, 2])) is None
