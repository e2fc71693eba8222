"""The time of each part of a step is recorded, so that a timeline shows which rank the others wait for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose_sim.core.state.timeline import Span, Timeline
from tests.node.harness import Cluster

pytestmark = pytest.mark.train

SCRIPT = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
slow = dist.get_rank() == 1
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.ones(6, 4), batch_size=2):
    loss = model(batch).sum()
    if slow:
        time.sleep(0.4)
    loss.backward()
    assert not loss._backward_hooks
    optimizer.step()
if not slow:
    time.sleep(0.4)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def test_ranks_wait_for_the_slow_rank_and_not_the_other_way_round(cluster: Callable[..., Cluster]) -> None:
    run = cluster(SCRIPT, nproc=2)
    run.start(1)
    assert set(run.exit_codes().values()) == {0}, run.log(0)
    timeline, spans = Timeline(), list[Span]()
    for rank in (0, 1):
        file = run.folder / "observations" / f"node-0.{rank}.0.jsonl"
        spans += timeline.add(rank, 0, file.read_text().splitlines())

    def of(rank: int, kind: str) -> list[Span]:
        return [span for span in spans if (span.rank, span.kind) == (rank, kind)]

    for rank in (0, 1):
        assert [len(of(rank, kind)) for kind in ("data", "forward", "backward", "optimizer")] == [3] * 4
    long = [span for span in of(0, "waiting") if span.lasted > 0.3]
    assert [(span.step, span.late) for span in long] == [(1, 1), (2, 1), (3, 1)]
    assert [span.what.split(" #")[0] for span in of(1, "waiting") if span.lasted > 0.3] == ["all_reduce"]
