"""Faults of a GPU do to a rank on a real GPU what they do on an emulated one. `scripts/gpu_test.sh` runs these."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest

from compose_sim.engine.run_folder.record import read_events
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.gpu

PLAY = ("play", "fault.yaml", "--engine", "local", "--nodes", "2", "--timeout", "5m", "--json")
# The GPU times the gradients and the whole step; the number of steps is so large that a fault ends the run first.
SCRIPT = """
import json, sys, time, torch, torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
weight = torch.zeros(256, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-3)
for step in range(int(sys.argv[1])):
    began, computed, ended = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    began.record()
    optimizer.zero_grad()
    (weight @ weight).add(1).square().mean().backward()
    computed.record()
    optimizer.step()
    ended.record()
    torch.cuda.synchronize()
    parts = {"gradients_ms": began.elapsed_time(computed), "step_ms": began.elapsed_time(ended)}
    print(json.dumps({"step": step, "at": time.time(), **parts}), flush=True)
dist.destroy_process_group()
"""
# What this machine's CUDA raises for an index out of range, and for too much memory.
REAL = """
import json, torch
from pathlib import Path

raised = []
zeros = torch.zeros(3, device="cuda")
for provoke in (lambda: torch.empty(1 << 50, device="cuda"), lambda: zeros[torch.tensor([7], device="cuda")].cpu()):
    try:
        provoke()
    except Exception as error:
        raised.append((type(error).__name__, str(error)))
Path("raised.json").write_text(json.dumps(raised))
"""


@pytest.mark.parametrize("kind", ["xid", "ecc", "lost", "oom"])
def test_an_injected_error_is_the_same_on_real_and_emulated_gpus(project: Project, kind: str) -> None:
    step = f"- at: {{rank: 1, step: 5}}\n  fault: {{kind: gpu-error, node: node-1, --kind: {kind}}}\n"
    project.write("fault.yaml", f"steps:\n{step}")
    script = project.write("train.py", SCRIPT)
    causes = []
    for gpus in ("0", "emulated"):
        outcome = project.run(*PLAY, "--gpus", gpus, script, "1000000")
        cause = outcome.report["cause"]
        print(f"{kind} on {gpus}: {cause['message']}")
        assert (outcome.status, cause["kind"], cause["node"], cause["rank"]) == (1, "exception", "node-1", 1)
        assert re.search(r'File ".*train\.py", line \d+', cause["traceback"])
        causes.append(re.sub(r"GPU \d+ has.*", "", cause["message"]))
    assert causes[0] == causes[1]


def test_injected_errors_have_the_type_and_the_words_of_real_ones(project: Project) -> None:
    project.write("real.py", REAL)
    outcome = project.run("up", "--engine", "local", "--nodes", "1", "--gpus", "0", "real.py")
    assert outcome.status == 0, outcome.stderr
    memory, access = json.loads((project.folder / "raised.json").read_text())
    print(memory, access, sep="\n")

    assert memory[0] == "OutOfMemoryError"
    assert memory[1].startswith("CUDA out of memory. Tried to allocate ")
    assert access[0] == "AcceleratorError"
    assert access[1].startswith("CUDA error: ")
    assert "For debugging consider passing CUDA_LAUNCH_BLOCKING=1" in access[1]


def test_a_slow_gpu_takes_longer_for_a_step_until_it_is_healed(project: Project) -> None:
    project.write(
        "fault.yaml",
        "steps:\n"
        "- at: {rank: 1, step: 500}\n  fault: {kind: gpu-slow, node: node-1, by: 20}\n"
        "- at: {event: fault, after: 3s}\n  heal: node-1\n",
    )
    outcome = project.run(*PLAY, "--gpus", "0", project.write("train.py", SCRIPT), "20000")
    assert outcome.status == 0, outcome.stderr
    run = outcome.report["run"]
    lines = project.log_of(run, "node-1.1").splitlines()
    steps = [json.loads(line) for line in lines if line.startswith("{")]
    events = [each for each in read_events(project.folder / ".composesim" / "runs" / run) if "phase" in each.data]
    begun, healed = (
        next(each.t for each in events if (each.kind, each.data["phase"]) == wanted)
        for wanted in (("fault", "done"), ("heal", "begun"))
    )
    # Other tests use this GPU: a step is compared with its own gradients, which they slow down as much.
    slow = [step["step_ms"] / step["gradients_ms"] for step in steps if begun < step["at"] < healed]
    others = [step["step_ms"] / step["gradients_ms"] for step in steps if not begun < step["at"] < healed]
    print(f"{len(slow)} slow steps, median {median(slow):.2f} ×; {len(others)} others, median {median(others):.2f} ×")

    assert len(slow) > 10
    assert median(slow) > 4 * median(others)  # by 20, were it exact
