"""Emulated GPUs show what real ones show. The same scripts run on both, and their losses and errors are compared.

Random numbers are drawn on the CPU in all of them, since the generator of a GPU draws others.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.node.emulated.cuda_surface import PROBES
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.gpu

SCRIPTS = ROOT / "tests" / "node" / "emulated"
# float32 without TF32: both round at 6e-8, in different orders; a few steps of a hundred operations stay below this.
SINGLE = 1e-4
# half precision: one rounding is 4e-3 (bfloat16) or 5e-4 (float16) of a value, and a mean over a batch averages them.
HALF = 1e-2
# The same with float32 weights: the CPU's curve differs from float32's by 2e-5, while the curve moves by 1e-2.
MIXED = 1e-3
# Scripts in the styles of public code bases. Those that compute in half precision are compared as such.
STYLES = sorted((SCRIPTS / "styles").glob("*.py"))
HALVES = re.compile(r"bfloat16|float16|autocast|fp16|bf16")
SWITCHED_OFF = "enabled=False"  # llm.c's script names a half precision, and leaves it off
TWICE = 300.0  # seconds for a run: CUDA contexts and NCCL start slowly on a cold machine

# What both texts must contain. The rest may differ, for example the name of the kernel that checked the argument.
SAME_DEVICE = "Expected all tensors to be on the same device"
ORDINAL = "invalid device ordinal"
# Layers that cuDNN computes have different messages, which depend on torch's version.
BY_VERSION = ("a_cpu_batch_for_a_convolution", "a_cuda_batch_for_a_convolution", "a_cpu_batch_for_an_lstm")
WORDS = {
    "cuda_in_a_fork": "Cannot re-initialize CUDA in forked subprocess",
    "a_sum_of_cpu_and_cuda": f"{SAME_DEVICE}, but found at least two devices, cuda:0 and cpu!",
    "a_cpu_batch_for_a_linear_layer": SAME_DEVICE,
    "a_cpu_batch_for_a_convolution": "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    "a_cuda_batch_for_a_convolution": "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
    "a_cpu_batch_for_an_lstm": "Input and parameter tensors are not at the same device",
    "a_cpu_batch_for_batch_norm": SAME_DEVICE,
    "cpu_indices_for_an_embedding": SAME_DEVICE,
    "cpu_targets": SAME_DEVICE,
    "a_list_of_cpu_and_cuda": SAME_DEVICE,
    "two_gpus_meet": "device",
    "an_index_that_no_gpu_has": ORDINAL,
    "a_tensor_for_a_gpu_that_is_not_there": ORDINAL,
    "a_module_for_a_gpu_that_is_not_there": ORDINAL,
    "numpy_of_a_cuda_tensor": "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()",
    "cuda_indices_for_a_cpu_tensor": "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    "a_generator_of_the_cpu": "Expected a 'cuda' device type for generator but found 'cpu'",
    "pinning_a_cuda_tensor": "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    "a_gradient_elsewhere": "attempting to assign a gradient with device type 'cpu' to a tensor with device type 'cuda'",
    "loading_without_map_location": "Attempting to deserialize object on CUDA device 99 but torch.cuda.device_count() is ",
    "times_of_events_without_timing": "Both events must be created with argument 'enable_timing=True'",
    "a_cpu_tensor_for_nccl": "No backend type associated with device type cpu",
    "columns_for_nccl": "Tensors must be contiguous",
    "a_transposed_tensor_for_nccl": "Tensors must be contiguous",
    "channels_last_for_nccl": "nothing was raised",
    "an_optimizer_of_dtensors_and_plain_tensors": "got mixed torch.Tensor and DTensor",
    "ddp_of_a_model_left_on_the_cpu": "DistributedDataParallel device_ids and output_device arguments only work with",
    "sync_batch_norm_left_on_the_cpu": "No backend type associated with device type cpu",
    "sync_batch_norm_of_a_cpu_batch": "SyncBatchNorm expected input tensor to be on",
}


@pytest.fixture(scope="module")
def count() -> int:
    """Return the number of GPUs of this machine."""
    program = "import torch; print(torch.cuda.device_count())"
    found = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert found > 0, "torch finds no GPU: these tests compare with a real one"
    return found


def test_device_bugs_raise_what_they_raise_on_a_gpu(project: Project, count: int) -> None:
    shape = ("--nproc-per-node", "1", "--gpus-per-node", str(count))
    mine, its = (_bugs(_run(project, gpus, shape, ("device_bugs.py",))) for gpus in ("emulated", "real"))

    assert set(mine) == set(its) == set(WORDS)
    assert [told for name in WORDS if (told := _difference(name, mine[name], its[name], WORDS[name]))] == []


def test_torch_answers_as_on_a_gpu(project: Project, count: int) -> None:
    shape = ("--nproc-per-node", "1", "--gpus-per-node", "1")
    mine, its = (_surface(_run(project, gpus, shape, ("cuda_surface.py",))) for gpus in ("emulated", "real"))
    rows = [(expression, answer, mine[expression], its[expression]) for expression, answer in PROBES]
    for expression, answer, emulated, real in rows:
        mark = "same" if emulated == real == answer else "DIFFERENT"
        print(f"{mark}: {expression}\n    expected: {answer}\n    emulated: {emulated}\n    GPU:      {real}")

    assert [row for row in rows if len(set(row[1:])) > 1] == []


def test_two_ranks_on_one_gpu_are_refused_as_on_a_gpu(project: Project, count: int) -> None:
    shape = ("--nproc-per-node", "2", "--gpus-per-node", "1", "--share", "timeslice")
    mine, its = (_bugs(_run(project, gpus, shape, ("one_gpu_twice.py",))) for gpus in ("emulated", "real"))

    name = "one_gpu_twice"
    since_2_15 = "Failed to initialize NCCL communicator: invalid usage"
    words = since_2_15 if its[name][1].startswith(since_2_15) else "Duplicate GPU detected : rank "
    assert _difference(name, mine[name], its[name], words) == ""


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("elastic_trainer.py", "4", "snapshot.pt"), SINGLE),
        (("images.py",), SINGLE),
        (("gpt.py", "float32", "0"), SINGLE),
        (("gpt.py", "bfloat16", "0"), MIXED),
        (("gpt.py", "float16", "0"), MIXED),
        (("reference.py",), HALF),
        (("fsdp2.py", "cpu"), HALF),
        (("tensor_parallel.py", "cpu"), SINGLE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_losses_are_those_of_a_gpu(
    project: Project, count: int, words: tuple[str, ...], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compare(project, ("--nproc-per-node", str(min(2, count))), words, tolerance, monkeypatch)


@pytest.mark.parametrize("script", STYLES, ids=lambda path: path.stem)
def test_public_styles_train_as_on_a_gpu(
    project: Project, count: int, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in script.read_text().splitlines() if SWITCHED_OFF not in line]
    tolerance = HALF if HALVES.search("\n".join(lines)) else SINGLE
    ranks = str(min(2, count))
    shape: tuple[str, ...] = ("--nproc-per-node", ranks)
    if script.stem == "mp_spawn":  # it starts the ranks
        shape = ("--nproc-per-node", "1", "--launcher", "env", "--gpus-per-node", ranks)
    _compare(project, shape, (f"styles/{script.name}",), tolerance, monkeypatch)


def _compare(
    project: Project,
    shape: tuple[str, ...],
    words: tuple[str, ...],
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run a script on emulated and on real GPUs, and compare the losses that it prints."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # TF32 rounds at 5e-4
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # an emulated model runs eagerly, so the real one does
    emulated, real = (_run(project, gpus, shape, words) for gpus in ("emulated", "real"))
    if skipped := re.search(r"\bskipped: .*", real):
        pytest.skip(skipped[0])
    curves = [[float(loss) for loss in re.findall(r"\bloss (-?[\d.]+)", output)] for output in (emulated, real)]
    for at, (mine, its) in enumerate(zip(*curves, strict=False)):
        print(
            f"{' '.join(words)} [{at}]: emulated {mine:.6f}, GPU {its:.6f}, differ by {abs(mine - its) / abs(its):.1e}"
        )

    assert len(curves[1]) >= 2
    assert curves[0] == pytest.approx(curves[1], rel=tolerance, abs=2e-6)  # they are printed with six digits


def _run(project: Project, gpus: str, shape: tuple[str, ...], words: tuple[str, ...]) -> str:
    """Return what rank 0 printed on real or on emulated GPUs."""
    run = project.named(f"{Path(words[0]).stem}-{gpus}".replace("_", "-"))
    how = ("--gpus", "emulated" if gpus == "emulated" else "all")
    folder = project.folder / ".composesim" / "runs" / run
    for left in ("snapshot.pt", "checkpoint.pth.tar"):  # the second run begins where the first began
        (project.folder / left).unlink(missing_ok=True)
    outcome = project.run("up", "--engine", "local", "--nodes", "1", *shape, *how, "--name", run, "--json",
                          str(SCRIPTS / words[0]), *words[1:], timeout=TWICE)  # fmt: skip
    logs = {path.name: path.read_text() for path in (folder / "logs").glob("*.log")}
    assert outcome.status == 0, (outcome.stdout, outcome.stderr, logs)
    assert (outcome.report["versions"]["cuda"] == "emulated on the CPU") == (gpus == "emulated")
    return logs["node-0.0.log"] if "node-0.0.log" in logs else logs["node-0.log"]


def _surface(output: str) -> dict[str, str]:
    answers: dict[str, str] = json.loads(output.partition("SURFACE ")[2].splitlines()[0])
    return answers


def _bugs(output: str) -> dict[str, tuple[str, str]]:
    line = next(line for line in output.splitlines() if "BUGS {" in line)
    return {name: (kind, text) for name, (kind, text) in json.loads(line.partition("BUGS ")[2]).items()}


def _difference(name: str, mine: tuple[str, str], its: tuple[str, str], words: str) -> str:
    """Return "" if both raise the same type with these words, else the difference; print texts that differ."""
    both = f"{name}\n    emulated: {mine[0]}: {mine[1]}\n    GPU:      {its[0]}: {its[1]}"
    if mine != its:
        print(both)
    accepted = (words, SAME_DEVICE) if name in BY_VERSION else (words,)
    is_same = words in mine[1] and any(each in its[1] for each in accepted)
    return "" if mine[0] == its[0] and is_same else both
