"""Replay many ranks' steps on one rank: joined batches, matched passages, compared gradients, and two real runs."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pad_sequence  # noqa: E402 - torch may be missing

from compose_sim.node.rank.context import RankContext  # noqa: E402 - torch may be missing
from compose_sim.node.rank.replay import batch_ids, batches, gradients, shards  # noqa: E402 - torch may be missing
from compose_sim.node.rank.replay.batches import collated  # noqa: E402 - as above
from compose_sim.node.rank.replay.rng_usage import RngUsage  # noqa: E402 - as above
from compose_sim.node.rank.torch_hooks import points  # noqa: E402 - as above
from compose_sim.node.records.gradients import LossSlope  # noqa: E402 - as above
from compose_sim.node.records.replays import ReplayedStep  # noqa: E402 - as above
from compose_sim.node.records.timings import StepTimes  # noqa: E402 - as above
from tests.node.harness import Cluster  # noqa: E402 - it stands with the others

pytestmark = pytest.mark.train

Pair = namedtuple("Pair", "x y")


def test_tensors_in_any_structure_are_joined_along_the_first_dimension() -> None:
    one = {"x": torch.zeros(2, 3), "more": [torch.zeros(2), ["a", "b"]], "scale": 2.0}
    other = {"x": torch.ones(2, 3), "more": [torch.ones(2), ["c", "d"]], "scale": 2.0}

    joined = batches.join([one, other])

    assert joined["x"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert joined["more"][0].tolist() == [0, 0, 1, 1]
    assert joined["more"][1] == ["a", "b", "c", "d"]
    assert joined["scale"] == 2.0


def test_types_of_batches_are_kept() -> None:
    pair = batches.join([Pair(torch.zeros(1), torch.zeros(1)), Pair(torch.ones(1), torch.ones(1))])
    mapping = batches.join([UserDict(x=torch.zeros(1)), UserDict(x=torch.ones(1))])

    assert isinstance(pair, Pair)
    assert isinstance(mapping, UserDict)
    assert mapping["x"].tolist() == [0, 1]


def test_lists_of_samples_grow() -> None:
    images, targets = torch.zeros(3, 4, 4), {"boxes": torch.zeros(2, 4)}
    detection = ((images, images), (targets, targets))
    samples = [(images, 1), (images, 2)]

    assert [len(part) for part in batches.join([detection, detection])] == [4, 4]
    assert [label for _, label in batches.join([samples, samples])] == [1, 2, 1, 2]


def test_samples_of_all_ranks_are_padded_together() -> None:
    data = [torch.arange(1, length + 1) for length in (3, 1, 4, 2)]
    loader = torch.utils.data.DataLoader(data, collate_fn=lambda rows: pad_sequence(rows, batch_first=True))
    parts = [loader.collate_fn(data[:2]), loader.collate_fn(data[2:])]

    assert collated(loader, [[0, 1], [2, 3]], parts).tolist() == [
        [1, 2, 3, 0],
        [1, 0, 0, 0],
        [1, 2, 3, 4],
        [1, 2, 0, 0],
    ]


def test_samples_that_are_others_when_fetched_again_are_not_joined() -> None:
    class Augmented:
        def __getitem__(self, _: int) -> torch.Tensor:
            return torch.rand(2)

    data = Augmented()
    loader = torch.utils.data.DataLoader(data, collate_fn=torch.stack)
    before = torch.get_rng_state()
    parts = [torch.rand(1, 2), torch.rand(1, 2)]
    torch.set_rng_state(before)

    assert collated(loader, [[0], [1]], [part + 1 for part in parts]) is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), "different shapes"),
        ({"length": 3}, {"length": 4}, "different values"),
        (object(), object(), "type object"),
        (torch.tensor(1.0), torch.tensor(2.0), "different single numbers"),
    ],
)
def test_what_cannot_be_joined_is_said(one: Any, other: Any, words: str) -> None:
    with pytest.raises(batches.CannotJoin, match=words):
        batches.join([one, other])


def test_a_view_is_kept_without_what_it_is_a_view_of() -> None:
    view = torch.zeros(1000)[:3]

    assert batches.compact([view])[0].untyped_storage().nbytes() == 12


def test_parts_of_all_ranks_make_up_a_tensor() -> None:
    rows = [
        shards.Part((3, 2), (0, 1), 0, None, torch.tensor([0.0, 1.0, 2.0, 3.0])),
        shards.Part((3, 2), (0, 1), 4, None, torch.tensor([4.0, 5.0])),
    ]
    columns = [shards.Part((3, 2), (0, 1), at, torch.arange(at, 6, 2), torch.arange(at, 6.0, 2)) for at in (0, 1)]
    partial = [shards.Part((2,), (0, 1), 0, None, torch.tensor([1.0, 2.0])) for _ in range(2)]
    replica = rows[0]._replace(ranks=(2, 3), values=torch.full((4,), 9.0))

    assert shards.whole([*rows, replica]).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert shards.whole(columns).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert shards.whole(partial).tolist() == [2, 4]
    with pytest.raises(shards.NotComplete):
        shards.whole(rows[:1])


def test_replicas_beside_sharded_tensors_must_be_equal() -> None:
    held = [[torch.zeros(2)], [torch.ones(2)]]

    assert shards.joined(held, replicas_agree=False)[0].tolist() == [0, 0]
    with pytest.raises(shards.NotComplete):
        shards.joined(held, replicas_agree=True)


def test_ranks_that_share_samples_count_once() -> None:
    one, other = [torch.zeros(2)], [torch.ones(2)]

    assert len(batches.distinct([one, [torch.zeros(2)], other, [torch.ones(2)]])) == 2
    assert len(batches.distinct([one, [torch.zeros(2)], other])) == 3


def test_gradients_are_compared_tensor_by_tensor() -> None:
    recorded = [torch.full((4,), 2.0), None, torch.ones(2)]
    ours = [torch.full((4,), 8.0), None, torch.full((2,), 4.0)]

    found = gradients.compare(ours, recorded, largest=0.0, precision="float32")

    assert found.ratio == pytest.approx(4.0)
    assert found.cosine == pytest.approx(1.0)
    assert found.difference == pytest.approx(3.0)
    assert gradients.compare(recorded, recorded, largest=0.0, precision="float32").difference == 0.0


def test_rounding_in_a_tiny_tensor_is_no_difference() -> None:
    recorded = [torch.ones(100), torch.full((2,), 1e-9)]
    ours = [torch.ones(100), torch.full((2,), -1e-9)]

    assert gradients.compare(ours, recorded, largest=0.0, precision="float32").difference < 1e-6


def test_a_look_into_a_loader_on_one_rank_shifts_nothing() -> None:
    def rank(*all_steps: tuple[int, int]) -> batch_ids.RankRecord:
        made = [
            batch_ids.Passage(0, number, batches=1, first_step=first, last_step=last)
            for number, (first, last) in enumerate(all_steps)
        ]
        return batch_ids.RankRecord(passages={passage.key: passage for passage in made})

    found = batch_ids.aligned([rank((0, 0), (0, 7), (8, 15)), rank((0, 7), (8, 15))])

    assert sorted(found[0, 0]) == [0]
    assert found[0, 1][1].number == 0
    assert found[0, 2][1].number == 1


@pytest.fixture
def draws(rank: RankContext) -> Iterator[RngUsage]:
    """Record random draws from torch until the test ends."""
    made, drawn = RngUsage(), points.Point("torch", "randn", "Tensor.normal_")
    drawn.subscribe(made.notice)
    yield made
    drawn.unwrap()


def test_draws_of_the_training_are_seen_and_those_of_a_loader_are_not(draws: RngUsage) -> None:
    draws.open()
    draws.close()
    torch.rand(1)  # between the windows
    assert draws.take() == ()

    draws.open()
    torch.nn.functional.dropout(torch.ones(3))
    draws.close()
    assert draws.take() == ("torch",)

    draws.open()
    torch.randn(2, generator=torch.Generator().manual_seed(1))
    draws.close()
    assert draws.take() == ("torch.Generator",)


SCRIPT = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def train():
    x = torch.arange(48.0).view(24, 2) / 48
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * dist.get_world_size())
    for x, y in DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


def test_one_rank_repeats_the_steps_of_two(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    record = {"COMPOSESIM_RECORD": str(tmp_path / "record")}
    many = cluster(SCRIPT, nproc=2)
    (many.folder / "observations").mkdir()
    many.environment |= {**record, "COMPOSESIM_CHECK": "record"}
    assert set(many.start(1).exit_codes().values()) == {0}
    work = {each.kind for rank in (0, 1) for times in many.observed(rank).of(StepTimes) for each in times.work}
    assert "optimizer" in work
    assert "checkpoint" not in work, "the recording is none of the script"

    one = cluster(SCRIPT)
    (one.folder / "observations").mkdir()
    one.environment |= {**record, "COMPOSESIM_CHECK": "replay"}
    assert set(one.start(1).exit_codes().values()) == {0}

    steps = list(one.observed().of(ReplayedStep))
    assert [step.step for step in steps] == [0, 1, 2]
    assert all((step.difference or 0.0) < 1e-5 and step.why_not == "" for step in steps)
    assert steps[0].settings[0]["lr"] == 0.1
    assert {step.recorded_settings[0]["lr"] for step in steps} == {0.2}


def test_a_gradient_that_is_tiny_beside_the_parameters_is_rounding() -> None:
    least = gradients.least_to_compare([torch.full((4,), 5.0), None])
    noise, other = [torch.full((4,), 1e-7)], [torch.full((4,), -2e-7)]
    small, near = [torch.full((4,), 1e-4)], [torch.full((4,), 2e-4)]

    assert gradients.compare(noise, other, largest=least, precision="float32").vanished
    assert not gradients.compare(small, near, largest=least, precision="float32").vanished


FLAT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1, bias=False)
flat = torch.zeros(8 << 20)
model.weight.grad = flat[:2].view(1, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(flat[:2])
    optimizer.step()
    flat.zero_()
dist.destroy_process_group()
"""


def test_the_record_of_a_gradient_in_a_large_buffer_is_small(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    many = cluster(FLAT, nproc=2)
    record = tmp_path / "record"
    (many.folder / "observations").mkdir()
    many.environment |= {"COMPOSESIM_RECORD": str(record), "COMPOSESIM_CHECK": "record"}
    assert set(many.start(1).exit_codes().values()) == {0}

    sizes = {path.name: path.stat().st_size for path in record.iterdir()}
    assert {"slope.0.0.0.pt", "slope.1.2.0.pt"} <= sizes.keys()
    assert sum(sizes.values()) < 1 << 20


CHOOSING = """
import torch
import torch.distributed as dist

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden * {factor})

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    found = model(torch.ones(2, 3))
    found.argmax(0)  # a metric, which nothing later uses
    found.sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("factor", "chooses"),
    [("hidden.max(-1, keepdim=True).indices", True), ("torch.topk(hidden, 1).indices", True), ("hidden.max()", False)],
)
def test_what_a_forward_pass_chooses_by_values_is_recorded(
    cluster: Callable[..., Cluster], tmp_path: Path, factor: str, chooses: bool
) -> None:
    for mode in ("record", "probe"):
        ranks = cluster(CHOOSING.replace("{factor}", factor), nproc=2)
        (ranks.folder / "observations").mkdir()
        ranks.environment |= {"COMPOSESIM_RECORD": str(tmp_path / "record"), "COMPOSESIM_CHECK": mode}
        assert set(ranks.start(1).exit_codes().values()) == {0}

    moved = [each for each in ranks.observed(1).of(LossSlope) if each.parameter]
    assert len(moved) == 2
    assert {each.choices != 0 for each in moved} == {chooses}


IN_TWO_PARTS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(3, 1, bias=False)
torch.nn.init.ones_(model.weight)
for step in range(4):
    total = torch.zeros(1, 3)
    for part in (1.0, 3.0):
        model(torch.full((2, 3), part * (step + 1))).sum().backward()
        total += model.weight.grad  # as if it were reduced
        model.weight.grad = None
    with torch.no_grad():
        model.weight -= 0.01 * total
dist.destroy_process_group()
"""


def test_a_parameter_is_moved_in_all_passes_of_a_step_by_hand(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """To move it and to put it back is no update, and each pass adds its part, although the script clears the gradient."""
    seen = {}
    for mode in ("record", "probe"):
        ranks = cluster(IN_TWO_PARTS, nproc=2)
        (ranks.folder / "observations").mkdir()
        ranks.environment |= {"COMPOSESIM_RECORD": str(tmp_path / "record"), "COMPOSESIM_CHECK": mode}
        assert set(ranks.start(1).exit_codes().values()) == {0}
        seen[mode] = list(ranks.observed(1).of(LossSlope))

    changes = [(moved.loss or 0.0) - (first.loss or 0.0) for first, moved in zip(*seen.values(), strict=True)]
    assert [each.step for each in seen["probe"]] == [each.step for each in seen["record"]] == [0, 1, 2, 3]
    assert [each.product for each in seen["probe"]] == [
        None,
        None,
        *(pytest.approx(each, rel=1e-3) for each in changes[2:]),
    ]
    assert changes[:2] == [0.0, 0.0] != changes[2:]
