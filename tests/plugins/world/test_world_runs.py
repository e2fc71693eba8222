"""A world that is planned has the same collectives, bytes and samples as the real one, and says what fails in a large one."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Project

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"

pytestmark = pytest.mark.train


def planned(project: Project, world: int, script: str, *options: str, code: int = 0) -> dict[str, Any]:
    done = project.run("plan", "--engine", "local", "--gpus", "none", "--world", str(world), *options, "--json", script)
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def per_step(rank: dict[str, Any]) -> dict[tuple[str, tuple[int, ...]], list[int]]:
    """Calls, bytes given and received by kind and ranks, as gloo runs them: it has no reduce-scatter, and reduces the whole input."""
    found: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in rank["per_step"]:
        kind, received = each["kind"], each["received"]
        if kind == "reduce_scatter":
            kind, received = "all_reduce", each["given"]
        key = kind, tuple(rank["groups"][each["group"]])
        found[key] = [a + b for a, b in zip(found[key], (each["calls"], each["given"], received), strict=True)]
    return dict(found)


def really_ran(project: Project, world: int, script: str) -> tuple[dict[int, Any], dict[int, list[int]]]:
    """Run the script for real; return what each rank communicated in a step, and the samples of its first epoch."""
    name = f"real-{script.partition('.')[0].replace('_', '-')}-{world}"
    size = ("--nodes", str(world // 2), "--nproc-per-node", "2")
    up = ("up", "--engine", "local", "--gpus", "none", "--force", "--name", name, *size)
    done = project.run(*up, str(HERE / "real_rank.py"), str(project.folder / "seen"), script)
    assert done.returncode == 0, done.stdout + done.stderr
    traffic = {}
    for rank in range(world):
        seen = json.loads((project.folder / f"seen.{rank}").read_text())
        traffic[rank] = {
            (kind, tuple(ranks)): amounts for (kind, ranks), amounts in ((json.loads(k), v) for k, v in seen.items())
        }
    samples: dict[int, list[int]] = {rank: [] for rank in range(world)}
    for file in (project.folder / ".composesim/runs" / name / "observations").glob("*.jsonl"):
        rank = int(file.name.split(".")[1])
        for record in map(json.loads, file.read_text().splitlines()):
            if record["kind"] == "batch" and record["epoch"] == 0:
                samples[rank] += record["indices"]
    return traffic, samples


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("script", ["ddp.py", "fsdp_tp.py", "hsdp.py", "pipeline.py"])
def test_bytes_and_samples_are_those_of_the_real_run(project: Project, script: str, world: int) -> None:
    shutil.copy(SCRIPTS / script, project.folder)
    every = ",".join(map(str, range(world)))

    plan = planned(project, world, script, "--ranks", every)
    traffic, samples = really_ran(project, world, script)

    assert {rank["rank"]: per_step(rank) for rank in plan["ranks"]} == traffic
    shares = plan["samples"]["listed"]
    assert {rank: shares[share] for rank, share in enumerate(plan["samples"]["of_ranks"])} == samples
    assert plan["works"]
    assert all(rank["fake"] for rank in plan["ranks"])


def test_a_world_that_cannot_be_built_is_refused_with_the_line(project: Project) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model, world = torch.nn.Linear(4, 1024), dist.get_world_size()
if 1024 % world:
    raise ValueError(f"1024 columns, {world} ranks")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:  # for hours
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""
    project.write("train.py", script)

    broken = planned(project, 384, "train.py", "--ranks", "0,383", code=1)
    right = planned(project, 512, "train.py", "--ranks", "511")

    assert [(rank["outcome"], rank["at"]) for rank in broken["ranks"]] == [("raised", "train.py:6")] * 2
    assert [(rank["outcome"], rank["steps"]) for rank in right["ranks"]] == [("stepped", 2)]


ASKING = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))

class Shares:
    def __init__(self):
        self.offset = dist.get_rank()
    def __iter__(self):
        rank = dist.get_rank()
        return iter(range(OFFSET, 64, dist.get_world_size()))
    def __len__(self):
        return 64 // dist.get_world_size()

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, in DataLoader(data, sampler=Shares(), batch_size=2):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("offset", "way"), [("rank", "copies"), ("self.offset", "ranks")])
def test_a_sampler_that_asks_for_its_rank_is_told_unless_ranks_draw_otherwise(
    project: Project, offset: str, way: str
) -> None:
    project.write("train.py", ASKING.replace("OFFSET", offset))

    samples = planned(project, 8, "train.py", "--ranks", "3")["samples"]

    assert samples["way"] == way
    assert samples["listed"] == [[*range(rank, 64, 8)] for rank in range(8)]


def test_1024_ranks_have_their_samples_and_groups(project: Project) -> None:
    shutil.copy(SCRIPTS / "fsdp_tp.py", project.folder)
    script = (SCRIPTS / "fsdp_tp.py").read_text().replace("randn(64, 64)", "randn(5000, 64)")
    project.write("fsdp_tp.py", script)

    found = planned(project, 1024, "fsdp_tp.py", "--ranks", "0,511,1023")

    samples = found["samples"]
    assert (samples["shares"], samples["distinct"], samples["repeated"], samples["dropped"]) == (512, 5000, 120, 0)
    assert samples["of_ranks"] == [rank // 2 for rank in range(1024)]
    mesh = found["ranks"][1]["meshes"][0]
    assert (mesh["names"], mesh["shape"], mesh["own"]) == (["data", "tensor"], [512, 2], [255, 1])
    groups = found["ranks"][1]["groups"]
    assert [groups[name] for name in mesh["groups"]] == [list(range(1, 1024, 2)), [510, 511]]


def test_files_that_the_script_writes_are_left_alone_and_values_are_named(project: Project) -> None:
    script = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4).to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    loss = model(torch.randn(2, 4, dtype=torch.bfloat16)).sum()
    loss.backward()
    optimizer.step()
    with open("log.txt", "a") as log:
        print(loss.item(), file=log)
    assert open("log.txt").read().startswith("earlier")
"""
    project.write("train.py", script)
    project.write("log.txt", "earlier")

    found = planned(project, 16, "train.py", "--ranks", "3")

    assert found["ranks"][0]["values"] == ["train.py:11"]
    assert (project.folder / "log.txt").read_text() == "earlier"


def test_a_script_that_needs_values_runs_with_real_tensors(project: Project) -> None:
    script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
inputs = torch.randn(128, 4)
inputs = inputs[inputs.sum(1) > -1e9]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(inputs).sum().backward()
    optimizer.step()
"""
    project.write("train.py", script)

    (rank,) = planned(project, 16, "train.py", "--ranks", "3")["ranks"]

    assert (rank["fake"], rank["outcome"]) == (False, "stepped")
    assert "train.py:5" in rank["why_real"]
    assert [(each["kind"], each["given"]) for each in rank["per_step"]] == [("all_reduce", 80)]


def test_a_script_that_needs_a_gpu_is_refused(project: Project) -> None:
    project.write("train.py", "import torch\ntorch.cuda.set_device(0)\n")

    done = project.run("plan", "--engine", "local", "--world", "64", "--ranks", "63", "--json", "train.py")

    assert done.returncode == 2
    said = json.loads(done.stdout)["error"]["evidence"]
    assert "_cuda_setDevice" in said or "NVIDIA driver" in said, "of torch's builds for the CPU, and for CUDA"
