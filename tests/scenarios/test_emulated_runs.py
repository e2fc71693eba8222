"""Scripts written for CUDA and NCCL train where there is no GPU, and fail there as they would on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.train

SCRIPTS = ROOT / "tests" / "node" / "emulated"
UP = ("up", "--engine", "local", "--gpus", "emulated", "--nodes", "2", "--nproc-per-node", "2", "--json")
JOINED = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
"""
# Written once for both: DEVICE is "cuda" or "cpu".
TRAINING = """
import hashlib, os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
on_gpu = torch.cuda.is_available()
local = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 3)).to(device)
model = DDP(model, device_ids=[local] if on_gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(6):
    x, y = torch.randn(16, 8).to(device), torch.randint(3, (16,)).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
weights = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
if dist.get_rank() == 0:
    digest = hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()
    open(f"{os.environ['COMPOSESIM_SHARED']}/weights", "w").write(f"{device.type} {digest}")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("elastic_trainer.py", "3", "snapshot.pt"),
        ("images.py",),
        ("gpt.py", "bfloat16"),
        ("gpt.py", "float16"),
        ("reference.py",),
        ("fsdp2.py",),
        ("tensor_parallel.py",),
    ],
    ids=" ".join,
)
def test_a_script_for_cuda_trains(project: Project, words: tuple[str, ...]) -> None:
    outcome = project.run(*UP, str(SCRIPTS / words[0]), *words[1:])
    report = outcome.report

    assert outcome.status == 0, report["cause"]
    assert [node["exit_code"] for node in report["nodes"]] == [0, 0]
    assert all(node["steps"] > 0 for node in report["nodes"])
    gpus = next(choice for choice in report["choices"] if choice["what"] == "gpus")
    assert (gpus["value"], gpus["why"]) == ("emulated", "CUDA emulated on the CPU: asked for")


def test_a_run_resumes_from_its_checkpoint(project: Project) -> None:
    for epochs in ("1", "3"):
        outcome = project.run(*UP, "--name", f"resume-{epochs}", str(SCRIPTS / "images.py"), "--epochs", epochs,
                              *(("--resume", "checkpoint.pth.tar") if epochs == "3" else ()))  # fmt: skip
        assert outcome.status == 0, outcome.report["cause"]


def test_weights_are_those_of_the_script_on_the_cpu(project: Project) -> None:
    script = project.write("train.py", TRAINING)
    weights = {}
    for gpus in ("emulated", "none"):
        outcome = project.run(*UP, "--gpus", gpus, "--name", f"run-{gpus}", script)
        assert outcome.status == 0, outcome.report["cause"]
        weights[gpus] = (project.folder / f".composesim/runs/run-{gpus}/shared/weights").read_text().split()

    assert [weights["emulated"][0], weights["none"][0]] == ["cuda", "cpu"]
    assert weights["emulated"][1] == weights["none"][1]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda())", "Duplicate GPU detected"),
        ("dist.all_reduce(torch.ones(1, device='cuda'))", "Duplicate GPU detected"),
        (
            "torch.cuda.set_device(local); dist.all_reduce(torch.ones(1))",
            "No backend type associated with device type cpu",
        ),
        ("torch.cuda.set_device(rank)", "CUDA error: invalid device ordinal"),
        ("nn.Linear(2, 2).to(local)(torch.ones(2))", "Expected all tensors to be on the same device"),
    ],
)
def test_device_bugs_are_kept_alive(project: Project, code: str, message: str) -> None:
    script = project.write("train.py", f"{JOINED}{code}\n")
    outcome = project.run(*UP, script)

    assert outcome.status == 1
    assert message in outcome.report["cause"]["message"]


def test_children_emulate_however_they_are_started(project: Project) -> None:
    script = project.write(
        "train.py",
        """
import multiprocessing, os, subprocess, sys, threading
import torch
def look(queue):
    queue.put((torch.cuda.device_count(), str(torch.zeros(1, device="cuda:1").device)))
if __name__ == "__main__":
    found = []
    for method in ("fork", "spawn"):  # CUDA has not been used here, so a fork may use it
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=look, args=(queue,))
        child.start()
        found.append(queue.get())
        child.join()
    thread = threading.Thread(target=lambda: found.append((3, str(torch.zeros(1).cuda(1).device))))
    thread.start()
    thread.join()
    program = "import torch; print(torch.cuda.device_count(), torch.zeros(1, device=1).device)"
    found.append(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip())
    assert found == [(3, "cuda:1"), (3, "cuda:1"), (3, "cuda:1"), "3 cuda:1"], found
    torch.zeros(1).cuda()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    def refused(queue):
        try:
            torch.zeros(1).cuda()
        except RuntimeError as error:
            queue.put(str(error))
    child = context.Process(target=refused, args=(queue,))
    child.start()
    assert queue.get().startswith("Cannot re-initialize CUDA in forked subprocess")
    child.join()
""",
    )
    outcome = project.run(
        "up", "--engine", "local", "--gpus", "emulated", "--gpus-per-node", "3", "--nodes", "1", "--json", script
    )

    assert outcome.status == 0, outcome.report["cause"]


@pytest.mark.parametrize("launcher", ["warm", "torchrun", "env"])
def test_every_launcher_emulates(project: Project, launcher: str) -> None:
    script = project.write("train.py", JOINED + "torch.cuda.set_device(local)\ndist.all_reduce(torch.ones(1).cuda())\n")
    outcome = project.run(*UP, "--launcher", launcher, script)

    assert outcome.status == 0, outcome.report["cause"]
    assert outcome.report["versions"]["cuda"] == "emulated on the CPU"


def test_no_gpu_is_shown_where_none_was_asked_for(project: Project) -> None:
    script = project.write("train.py", "import torch\nassert not torch.cuda.is_available()\n")
    outcome = project.run("up", "--engine", "local", "--gpus", "none", "--nodes", "1", "--json", script)

    assert outcome.status == 0, outcome.report["cause"]


def test_the_node_says_that_its_gpus_are_emulated(project: Project) -> None:
    script = project.write("train.py", "import torch\n")
    project.run(*UP, "--name", "said", script)
    log = Path(project.folder / ".composesim/runs/said/logs/node-0.log").read_text()

    assert "CUDA emulated on the CPU: 2 devices" in log.splitlines()[0]


def test_collectives_that_gloo_lacks_are_composed(project: Project) -> None:
    script = project.write(
        "train.py",
        JOINED
        + """
torch.cuda.set_device(local)
whole = torch.tensor([rank, 7]).cuda()
dist.all_reduce(whole, op=dist.ReduceOp.AVG)
uneven = [torch.zeros(each + 1, device="cuda") for each in range(4)]
dist.all_gather(uneven, torch.full((rank + 1,), float(rank), device="cuda"))
flat = torch.zeros(4, 1, 2, device="cuda")
dist.all_gather_into_tensor(flat, torch.full((2,), float(rank), device="cuda"))
part = torch.zeros(1, 2, device="cuda")
dist.reduce_scatter_tensor(part, torch.arange(8.0, device="cuda"), op=dist.ReduceOp.AVG)
parts = [torch.zeros(1, device="cuda") for _ in range(4)]
dist.all_to_all(parts, [torch.full((1,), float(rank), device="cuda") for _ in range(4)])
dist.barrier(device_ids=[local])
found = [whole.tolist(), [each.tolist() for each in uneven], flat.flatten().tolist()]
found += [part.flatten().tolist(), torch.cat(parts).tolist()]
expected = [[1, 7], [[0.0], [1.0] * 2, [2.0] * 3, [3.0] * 4], [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
            [2.0 * rank, 2.0 * rank + 1], [0.0, 1.0, 2.0, 3.0]]
assert found == expected, found
assert dist.get_backend() == "nccl" and {str(part.device), str(whole.device)} == {f"cuda:{local}"}
""",
    )
    outcome = project.run(*UP, script)

    assert outcome.status == 0, json.dumps(outcome.report["cause"])
