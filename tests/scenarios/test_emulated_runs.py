"""Scripts written for CUDA and NCCL train without a GPU, and fail there as they would on one."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Outcome, Project

pytestmark = pytest.mark.train

TORCH = tuple(map(int, version("torch").split(".")[:2]))
SCRIPTS = ROOT / "tests" / "node" / "emulated"
UP = ("up", "--engine", "local", "--gpus", "emulated", "--nodes", "2", "--nproc-per-node", "2", "--json")
JOINED = """
import json, os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
"""
FIRST_GPU = (  # which all ranks of a node use
    "nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda())",
    "dist.all_reduce(torch.ones(1, device='cuda'))",
)
BUGS = {  # and torch's messages for them
    **dict.fromkeys(FIRST_GPU, "Duplicate GPU detected"),
    "torch.cuda.set_device(local); dist.all_reduce(torch.ones(1))": "No backend type associated with device type cpu",
    "torch.cuda.set_device(rank)": "CUDA error: invalid device ordinal",
    "nn.Linear(2, 2).to(local)(torch.ones(2))": "Expected all tensors to be on the same device",
}
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
        ("gpt.py", "bfloat16"),
        ("gpt.py", "float16"),
        ("reference.py",),
        ("fsdp2.py",),
        ("tensor_parallel.py",),
        *(
            [("styles/pipeline_schedule.py",)] if TORCH > (2, 9) else []
        ),  # gloo of torch 2.9 cannot run it, as under torchrun
    ],
    ids=" ".join,
)
def test_a_script_for_cuda_trains(project: Project, words: tuple[str, ...]) -> None:
    assert_it_trained(project.run(*UP, str(SCRIPTS / words[0]), *words[1:]))


def test_a_script_that_spawns_a_rank_for_each_gpu_trains(project: Project) -> None:
    shape = ("--nodes", "1", "--nproc-per-node", "1", "--launcher", "env", "--gpus-per-node", "2")
    outcome = project.run(*UP, *shape, str(SCRIPTS / "styles" / "mp_spawn.py"))

    assert outcome.status == 0, outcome.report["cause"]
    assert outcome.report["metrics"].keys() == {"loss"}


def assert_it_trained(outcome: Outcome) -> None:
    """Check that every node trained, on emulated GPUs if requested."""
    report = outcome.report
    assert outcome.status == 0, report["cause"]
    assert [node["exit_code"] for node in report["nodes"]] == [0, 0]
    assert all(node["steps"] > 0 for node in report["nodes"])
    gpus = next(choice for choice in report["choices"] if choice["what"] == "gpus")
    assert (gpus["value"], gpus["why"]) == ("emulated", "CUDA emulated on the CPU: requested")
    assert report["versions"]["cuda"] == "emulated on the CPU"


def test_a_script_for_cuda_resumes_from_its_checkpoint(project: Project) -> None:
    for epochs in ("1", "3"):
        resume = ("--resume", "checkpoint.pth.tar") if epochs == "3" else ()
        words = (str(SCRIPTS / "images.py"), "--epochs", epochs, *resume)
        assert_it_trained(project.run(*UP, "--name", project.named(f"resume-{epochs}"), *words))


def test_weights_are_those_of_the_script_on_the_cpu(project: Project) -> None:
    """Without a request there is no GPU; if GPUs are emulated, the node says so."""
    script = project.write("train.py", TRAINING)
    runs = {gpus: project.named(f"run-{gpus}") for gpus in ("emulated", "none")}
    weights = {}
    for gpus, run in runs.items():
        outcome = project.run(*UP, "--gpus", gpus, "--name", run, script)
        assert outcome.status == 0, outcome.report["cause"]
        weights[gpus] = (project.folder / f".composesim/runs/{run}/shared/weights").read_text().split()

    assert [weights["emulated"][0], weights["none"][0]] == ["cuda", "cpu"]
    assert weights["emulated"][1] == weights["none"][1]
    said, silent = (project.folder / f".composesim/runs/{run}/logs/node-0.log" for run in runs.values())
    assert "CUDA emulated on the CPU: 2 devices" in said.read_text().splitlines()[0]
    assert not silent.exists()


@pytest.mark.parametrize("bug", FIRST_GPU)
def test_a_rank_on_the_first_gpu_is_refused_if_nccl_has_chosen_another(project: Project, bug: str) -> None:
    """Since torch 2.15, a group has the device of LOCAL_RANK from the beginning."""
    binds = 'hasattr(dist, "ProcessGroupNCCL2")'
    script = project.write("train.py", f"{JOINED}print('binds', {binds})\nif {binds}:\n    {bug}\n")
    run = project.named("first-gpu")
    outcome = project.run(*UP, "--name", run, script)

    log = (project.folder / f".composesim/runs/{run}/logs/node-0.0.log").read_text()
    if "binds False" in log:
        assert outcome.status == 0
    else:
        assert (
            outcome.report["cause"]["message"] == "RuntimeError: Expected tensor on cuda:1 but found tensor on cuda:0"
        )


@pytest.mark.parametrize("backends", ["", "'cpu:gloo,cuda:nccl'"])
def test_only_cuda_tensors_of_a_group_with_two_backends_go_through_nccl(project: Project, backends: str) -> None:
    """Both ranks of a node use its first GPU: torch 2.15 refuses the second rank, and earlier versions refuse both."""
    joined = JOINED.replace('"nccl"', backends)
    script = project.write(
        "train.py",
        f"{joined}ones = torch.ones(1)\ndist.all_reduce(ones)\nassert ones.item() == 4\n"
        "dist.all_reduce(torch.ones(1, device='cuda:0'))\n",
    )
    outcome = project.run(*UP, script)

    assert outcome.status == 1
    message = outcome.report["cause"]["message"]
    assert message.endswith("Expected tensor on cuda:1 but found tensor on cuda:0") or "Duplicate GPU" in message


@pytest.mark.parametrize("duplicate", FIRST_GPU)
def test_device_bugs_are_kept_alive(project: Project, duplicate: str) -> None:
    """Bugs that the script catches are reported for every rank; the last one, which nothing catches, is the cause."""
    bugs = {code: message for code, message in BUGS.items() if code == duplicate or "Duplicate" not in message}
    *_, last = bugs
    tried = "".join(f"try:\n    {code}\nexcept Exception as error:\n    seen.append(str(error))\n" for code in bugs)
    script = project.write("train.py", f"{JOINED}seen = []\n{tried}print(json.dumps(seen), flush=True)\n{last}\n")
    run = project.named("bugs")
    old = ("--env", "TORCH_DIST_USE_NCCL2=0")  # in torch 2.15, one rank would be refused, and the other one would wait
    outcome = project.run(*UP, *old, "--name", run, script)

    assert outcome.status == 1
    assert BUGS[last] in outcome.report["cause"]["message"]
    for rank in range(4):
        log = (project.folder / f".composesim/runs/{run}/logs/node-{rank // 2}.{rank}.log").read_text()
        # Gloo of torch 2.9 prints "[Gloo]".
        seen = json.loads(next(line for line in log.splitlines() if line.startswith('["')))
        expected = [message for code, message in bugs.items() if rank > 1 or "set_device(rank)" not in code]
        assert len(seen) == len(expected), seen
        assert all(message in error for message, error in zip(expected, seen, strict=True)), seen


def test_collectives_and_optimizers_refuse_what_they_refuse_on_a_gpu(project: Project) -> None:
    run = project.named("refused")
    outcome = project.run(*UP, "--nproc-per-node", "1", "--name", run, str(SCRIPTS / "device_bugs.py"))

    assert outcome.status == 0, outcome.report["cause"]
    for rank in range(2):
        log = (project.folder / f".composesim/runs/{run}/logs/node-{rank}.{rank}.log").read_text()
        seen = json.loads(next(line for line in log.splitlines() if line.startswith("BUGS "))[5:])
        gaps = ["ValueError", "Tensors must be contiguous"]
        assert (seen["columns_for_nccl"], seen["a_transposed_tensor_for_nccl"]) == (gaps, gaps)
        assert seen["channels_last_for_nccl"] == ["", "nothing was raised"]
        assert "got mixed torch.Tensor and DTensor" in seen["an_optimizer_of_dtensors_and_plain_tensors"][1]


@pytest.mark.parametrize("launcher", ["torchrun", "env"])
def test_other_launchers_emulate_too(project: Project, launcher: str) -> None:
    script = project.write("train.py", JOINED + "torch.cuda.set_device(local)\ndist.all_reduce(torch.ones(1).cuda())\n")
    outcome = project.run(*UP, "--launcher", launcher, script)

    assert outcome.status == 0, outcome.report["cause"]
    assert outcome.report["versions"]["cuda"] == "emulated on the CPU"


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
if hasattr(dist, "gather_single"):  # from torch 2.14 on
    gathered = torch.zeros(4, 2, device="cuda") if rank == 1 else None
    dist.gather_single(torch.full((2,), float(rank), device="cuda"), gathered, dst=1)
    assert rank != 1 or gathered.tolist() == [[float(each)] * 2 for each in range(4)], gathered
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


IN_THREADS_OF_C = """
import torch.distributed.rpc as rpc
torch.cuda.set_device(local)
def there():
    return str(nn.Linear(2, 2).to(local).weight.device)
work = dist.all_reduce(torch.ones(2, device="cuda"), async_op=True)
later = work.get_future().then(lambda future: (future.value()[0] + torch.ones(2, device="cuda")).tolist())
part, factor = torch.empty(1, device="cuda"), dist._make_nccl_premul_sum(0.5)
dist.reduce_scatter_tensor(part, torch.ones(dist.get_world_size(), device="cuda"), op=factor)
found = [later.wait(), part.item()]
dist.destroy_process_group()
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
if rank == 0:
    print(json.dumps([*found, rpc.rpc_sync("worker1", there)]))
rpc.shutdown()
"""


def test_threads_that_torch_starts_see_the_gpus(project: Project) -> None:
    project.write("train.py", JOINED + IN_THREADS_OF_C)

    outcome = project.run(*UP[:-3], "--nproc-per-node", "1", "--env", "PYTHONWARNINGS=ignore", "train.py")

    assert outcome.status == 0, outcome.stderr
    assert '[[3.0, 3.0], 1.0, "cuda:0"]' in outcome.stdout


def test_a_rank_draws_for_a_mesh_and_answers_and_refuses_at_its_line(project: Project) -> None:
    script = project.write(
        "train.py",
        JOINED
        + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, randn
torch.cuda.set_device(local)
assert 0 <= torch.cuda.utilization() <= 100
drawn = randn(8, 2, device_mesh=init_device_mesh("cuda", (4,)), placements=[Shard(0)]).to_local()
assert (tuple(drawn.shape), str(drawn.device)) == ((2, 2), f"cuda:{local}"), drawn
try:
    drawn.__dlpack__()
except BufferError as error:
    assert "(train.py, line 14): use .cpu() first" in str(error), error
else:
    raise AssertionError("another library took it for CPU memory")
""",
    )
    outcome = project.run(*UP, script)

    assert outcome.status == 0, json.dumps(outcome.report["cause"])
