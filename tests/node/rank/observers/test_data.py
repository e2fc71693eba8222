"""Observe what ranks load, in workers too, without changing what the script computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from compose_sim.core.checks.epochs import indices_of, rows_of
from compose_sim.node.rank.observers.samples import scaled_by_itself
from compose_sim.node.records.data import Batch, EpochProgress, GivenRows, LoaderInfo, NumberedNames, RandomDraws
from compose_sim.node.records.models import SpreadTaken
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import pickle, sys, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Noisy(Dataset):
    def __init__(self): self.x = torch.arange(24.).reshape(12, 2)
    def __len__(self): return 12
    def __getitem__(self, index): return self.x[index] + torch.rand(2), str(index)

class Stream(IterableDataset):
    def __iter__(self): return iter(torch.arange(12.).reshape(6, 2))

torch.manual_seed(3)
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=int(sys.argv[1]), persistent_workers=sys.argv[1] != "0")
for epoch in range(2):
    for x, names in loader:
        optimizer.zero_grad()
        (x @ weight - 1).square().mean().backward()
        optimizer.step()
list(DataLoader(Stream(), batch_size=2))
if sys.argv[1] == "0":
    pickle.loads(pickle.dumps(torch.utils.data.DataLoader(list(range(3)))))
print("weights", weight.tolist(), torch.rand(1).item())
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_batches_epochs_and_draws_are_recorded(cluster: Callable[..., Cluster], workers: str) -> None:
    made = cluster(SCRIPT, workers).start(1)
    assert set(made.exit_codes().values()) == {0}
    seen = made.observed()
    loader, stream = seen.of(LoaderInfo)
    assert (loader.data, loader.length, loader.samplers[1]) == ("Noisy", 12, "RandomSampler")
    assert stream.iterable
    for epoch in range(2):
        batches = [each for each in seen.of(Batch) if (each.loader, each.epoch) == (0, epoch)]
        assert sorted(indices_of(batches) or ()) == list(range(12))
        assert len(set(rows_of(batches))) == 12
    closed = [each for each in seen.of(EpochProgress) if each.phase == "closed"]
    counts = [(each.trained, each.exhausted, each.batches) for each in closed]
    assert counts == [(True, True, 3), (True, True, 3), (False, True, 3)]
    drawn = [each for each in seen.of(RandomDraws) if each.loader == 0]
    assert {each.worker for each in drawn} == ({None} if workers == "0" else {0, 1})
    assert all(each.states["torch"][1] == 8 for each in drawn)


def weights(text: str) -> str:
    return next(line.partition("weights")[2] for line in text.splitlines() if "weights" in line)


def test_the_script_computes_what_it_computes_without_us(cluster: Callable[..., Cluster]) -> None:
    computed = {}
    for mode in ("record", ""):
        made = cluster(SCRIPT, "0")
        made.environment["COMPOSESIM_CHECK"] = mode
        made.start(1)
        assert made.exit_codes()["node-0"] == 0
        computed[mode] = weights(made.log(0))
    plain = subprocess.run([sys.executable, *made.program], capture_output=True, text=True, check=True)
    assert computed == dict.fromkeys(("record", ""), weights(plain.stdout))


NAMES = """
import torch

class Words:
    def __init__(self, words): self.numbers = {word: number for number, word in enumerate(words, 2)}

def train():
    words = Words("abcdefghij")
    settings = {"rate": 0.1, "name": "a", "depth": None, **{f"s{number}": number for number in range(9)}}
    state = {f"w{number}": torch.zeros(3) for number in range(9)}
    counts, files = dict(zip("klmnopqrst", range(10, 0, -1))), {f"{number}.txt": number for number in range(9)}
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.square().sum().backward()
        optimizer.step()

train()
"""


def test_dicts_that_number_names_are_told_from_settings_counters_and_files(cluster: Callable[..., Cluster]) -> None:
    made = cluster(NAMES)
    made.environment.update(COMPOSESIM_CHECK="record", COMPOSESIM_RECORD=str(made.folder / "record"))
    made.start(1)

    assert set(made.exit_codes().values()) == {0}
    assert [each.name for each in made.observed().of(NumberedNames)] == ["words.numbers"]


SPREADS = """
import torch
x = torch.arange(12.).reshape(4, 3)
layer = torch.nn.Linear(3, 3)
x.var(0)
torch.std(x)
torch.var(torch.empty(3, 0), 0), torch.var(torch.tensor(1.5)), torch.std(x, 1), torch.var(torch.ones(5, dtype=torch.complex64))
torch.func.vmap(lambda row: row.var(0))(torch.ones(2, 4, 3))
torch.compile(lambda rows: rows.var(0) + rows.std(), backend="eager")(x)
layer(torch.eye(3).to_sparse()), layer(x), layer(torch.ones(2, 3, requires_grad=True))
torch.func.vmap(layer)(torch.ones(2, 4, 3))
"""


def test_spreads_and_rows_of_odd_tensors_do_not_end_the_observers(cluster: Callable[..., Cluster]) -> None:
    made = cluster(SPREADS)
    made.environment.update(COMPOSESIM_CHECK="record", COMPOSESIM_RECORD=str(made.folder / "record"))
    made.start(1)

    assert set(made.exit_codes().values()) == {0}
    spreads = [(each.is_root, each.mean) for each in made.observed().of(SpreadTaken)]
    assert spreads[:4] == [(False, 4.5), (False, 5.5), (False, 6.5), (True, 5.5)]
    assert len([*made.observed().of(GivenRows)]) == 2


def test_data_whose_columns_are_scaled_by_themselves_are_recognised() -> None:
    import torch
    from torch.utils.data import TensorDataset

    raw = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 20.0, 0.0]) + 5
    scaled = [(raw - raw.mean(0)) / (raw.std(0, unbiased=unbiased) + 1e-8) for unbiased in (True, False)]

    found = [scaled_by_itself(TensorDataset(each, torch.arange(64))) for each in scaled]
    assert None not in found
    assert scaled_by_itself(scaled[0].flip(0).numpy()) == pytest.approx(found[0])
    part_of_another = ((raw - raw.mean(0)) / raw.std(0).clamp(min=1e-8))[:32]
    for other in (raw, part_of_another, scaled[0][:8], torch.arange(64), torch.zeros(64, 3), [], "words"):
        assert scaled_by_itself(other) is None
