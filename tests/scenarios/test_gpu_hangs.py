"""Hangs with NCCL are named as those without: a rank spins while it waits for its GPU. `scripts/gpu_test.sh` runs these."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import Project

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, kind = dist.get_rank(), sys.argv[1]
torch.cuda.set_device(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    odd = step == 12 and rank == 1
    if odd and kind == "sleeps":
        time.sleep(600)
    if odd and kind == "leaves":
        break
    if odd and kind == "computes":
        data, until = torch.rand(8192, 8192, device="cuda"), time.monotonic() + 40
        while time.monotonic() < until:
            data = (data @ data).sigmoid()
            torch.cuda.synchronize()
    loss = model(torch.rand(8, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    if step == 12 and kind == "differs":
        total = torch.ones(4, device="cuda")
        dist.broadcast(total, 0) if rank else dist.all_reduce(total)
    if step == 12 and kind == "sends" and rank == 0:
        dist.send(torch.ones(4, device="cuda"), 1)
    if step % 5 == 4 and kind == "adds" and rank == 0:
        dist.all_reduce(torch.ones(4, device="cuda"))
    loss.item()
print("done", flush=True)
"""


@pytest.mark.parametrize("kind", ["sleeps", "leaves", "differs", "sends", "adds"])
def test_a_hang_is_named_and_ends_the_run(project: Project, kind: str) -> None:
    script = project.write("train.py", SCRIPT)
    cluster = ("--engine", "local", "--nodes", "2", "--nproc-per-node", "1", "--hang-timeout", "16s", "--timeout", "3m")
    outcome = project.run("up", *cluster, "--json", script, kind)

    assert (outcome.status, outcome.report["verdict"]) == (124, "hung"), outcome.stderr
    assert min(node["steps"] for node in outcome.report["nodes"]) >= 12
    if kind == "sleeps":
        assert outcome.report["cause"]["message"].startswith("rank 1 on node-1 sleeps at train.py, line 14")
        assert "rank 0 waits for it in " in outcome.report["cause"]["message"]


def test_a_rank_whose_gpu_computes_for_long_does_not_hang(project: Project) -> None:
    script = project.write("train.py", SCRIPT)
    outcome = project.run(
        "up", "--engine", "local", "--nodes", "2", "--nproc-per-node", "1", "--json", script, "computes"
    )

    assert (outcome.status, outcome.report["cause"]) == (0, None), outcome.stderr
    assert "hang:" not in outcome.stderr
