"""Collectives, files and losses are recorded as they happen, and the script computes and pickles what it would without us."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import LossValue
from compose_sim.node.records.process_groups import Collective, LostResult, ReducedAgain, TakenFromAny
from compose_sim.node.records.script import ScriptEnd
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import os, pickle, sys, tempfile, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(3) * rank
dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
dist.broadcast(tensor, src=1)
pair = dist.new_group([0, 1])
dist.all_reduce(tensor, group=pair)
dist.barrier()
assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce

def compiled(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1

print("compiled", torch.compile(compiled, backend="aot_eager")(torch.ones(2)).tolist())
Path("plain.txt").write_text("x") if rank == 0 else None
tempfile.TemporaryFile(dir=".").close()  # it has no name
torch.save(tensor, f"saved-{rank}.pt")
torch.load(f"saved-{rank}.pt")
weight = torch.nn.Parameter(torch.ones(1))
(weight * 2.5).sum().backward()
sys.stdout.flush()
try:
    dist.broadcast(tensor, src=7)
except Exception as error:
    print("raised", type(error).__name__)
dist.destroy_process_group()
"""


def test_the_world_is_recorded(cluster: Callable[..., Cluster]) -> None:
    made = cluster(SCRIPT, nproc=2)
    made.cwd = made.folder.parent / "work"
    made.start(1)
    assert set(made.exit_codes().values()) == {0}, made.log(0)
    seen = made.observed()
    collectives = list(seen.of(Collective))
    assert [each.op for each in collectives][:5] == ["all_reduce", "broadcast", "new_group", "all_reduce", "barrier"]
    first, second, made_group, in_group, *_ = collectives
    assert (first.reduce, first.shapes, first.at and first.at[1]) == ("MAX", ((3,),), 7)
    assert (second.root, made_group.ranks, in_group.group) == (1, "[0, 1]", (0, 1))
    assert in_group.name != first.name
    assert "compiled [5.0, 5.0]" in made.log(0)
    shared = [
        use for use in seen.of(FileUse) if not use.private
    ]  # torch.compile may also try whether it can write to /tmp
    assert [(use.op, use.path.rpartition("/")[2]) for use in shared] == [
        ("write", "plain.txt"),
        ("write", "saved-0.pt"),
        ("written", "saved-0.pt"),
        ("read", "saved-0.pt"),
    ]
    assert [each.value for each in seen.of(LossValue)] == [2.5]
    assert [each.raised for each in seen.of(ScriptEnd)] == [None]


ONE_LINE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
for size, kind, op, group in [
    (2, torch.float32, dist.ReduceOp.SUM, None),
    (2, torch.float32, dist.ReduceOp.SUM, None),
    (2, torch.float32, dist.ReduceOp.MAX, None),
    (3, torch.float32, dist.ReduceOp.SUM, None),
    (2, torch.int64, dist.ReduceOp.SUM, None),
    (2, torch.float32, dist.ReduceOp.SUM, pair),
    (2, torch.float32, dist.ReduceOp.SUM, None),
]:
    dist.all_reduce(torch.zeros(size, dtype=kind), op, group=group)
lonely = dist.new_group([1])
dist.all_reduce(torch.zeros(1), group=lonely)  # without a part in it, rank 0 only gets a warning
dist.destroy_process_group()
"""


def test_a_line_that_issues_other_collectives_each_time_is_recorded_each_time(cluster: Callable[..., Cluster]) -> None:
    made = cluster(ONE_LINE, nproc=2)
    made.start(1)
    assert set(made.exit_codes().values()) == {0}, made.log(0)
    issued = [each for each in made.observed().of(Collective) if each.op == "all_reduce"]
    assert [(each.dtype, each.shapes, each.reduce) for each in issued] == [
        ("float32", ((2,),), None),
        ("float32", ((2,),), None),
        ("float32", ((2,),), "MAX"),
        ("float32", ((3,),), None),
        ("int64", ((2,),), None),
        ("float32", ((2,),), None),
        ("float32", ((2,),), None),
    ]
    world, pair = issued[0].name, issued[5].name
    assert world != pair
    assert [each.name for each in issued] == [*[world] * 5, pair, world]


LOSES = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(4, 1))
half = model.module.weight.detach().clone()

array = half.numpy().copy()
storage = torch.UntypedStorage(16)

def mean(tensor):
    dist.all_reduce(tensor)
    return tensor / 2

def norm():
    squares = torch.ones(2)
    dist.all_reduce(squares[:1])
    return squares.sum().sqrt()

for _ in range(20):  # a thread of gloo may hold a tensor for a moment longer, and then it is not noticed
    dist.all_reduce(half / 2)  # lost
    dist.all_reduce(half.clone(memory_format=torch.contiguous_format))  # lost
    dist.all_reduce(half.view(-1))
    dist.all_reduce(half.detach())
    dist.all_reduce(torch.from_numpy(array))
    dist.all_reduce(torch.empty(0).set_(storage))
    norm()
    dist.all_reduce(half)
    named = half / 2
    dist.all_reduce(named)
    mean(half / 2)
    dist.all_reduce(half / 2, async_op=True).wait()
with Join([model]):
    for _ in range(1 + rank):
        model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
"""


def test_a_result_that_the_script_cannot_use_is_recorded(cluster: Callable[..., Cluster]) -> None:
    run = cluster(LOSES, nproc=2)
    run.environment["COMPOSESIM_CHECK"] = "record"
    run.start(1)
    assert set(run.exit_codes().values()) == {0}, run.log(0)

    places = {each.at and each.at[1] for each in run.observed(1).of(LostResult)}

    lines = LOSES.splitlines()
    assert {lines[line - 1].partition("# ")[2] for line in places if line} == {"lost"}
    assert len(places) == 2


COUNTS = """import torch
import torch.distributed as dist

dist.init_process_group("gloo")
counts, own, equal = torch.zeros(3, dtype=torch.int64), torch.zeros(2), torch.ones(1)
for _ in range(6):
    counts[0] += 2
    dist.all_reduce(counts)  # again
    own += 1
    total = own.clone()
    dist.all_reduce(total)
    dist.all_reduce(equal)
    own_loss = torch.tensor([0.5, 0.25])
    dist.all_reduce(own_loss)
    own[:] = 0
    dist.all_reduce(own)
dist.destroy_process_group()
"""


def test_counts_that_hold_their_last_sum_are_recorded(cluster: Callable[..., Cluster]) -> None:
    run = cluster(COUNTS, nproc=2)
    run.environment["COMPOSESIM_CHECK"] = "record"
    run.start(1)
    assert set(run.exit_codes().values()) == {0}, run.log(0)

    noted = [each.at and each.at[1] for each in run.observed(1).of(ReducedAgain)]

    assert noted == [COUNTS.splitlines().index("    dist.all_reduce(counts)  # again") + 1] * 5


TAKES = """import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.zeros(1)
if dist.get_rank():
    dist.send(value, 0)
    dist.send(value, 0, tag=2)
else:
    sender = dist.recv(value)  # any
    dist.recv(value, sender, tag=2)
dist.destroy_process_group()
"""


def test_the_sender_of_a_message_that_any_rank_may_send_is_recorded(cluster: Callable[..., Cluster]) -> None:
    run = cluster(TAKES, nproc=2)
    run.environment["COMPOSESIM_CHECK"] = "record"
    run.start(1)
    assert set(run.exit_codes().values()) == {0}, run.log(0)

    taken = [(each.source, each.shape, each.at and each.at[1]) for each in run.observed().of(TakenFromAny)]

    assert taken == [(1, (1,), 1 + TAKES.splitlines().index("    sender = dist.recv(value)  # any"))]
