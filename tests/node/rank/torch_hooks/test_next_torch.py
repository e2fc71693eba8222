"""With a torch that has renamed what composesim uses, scripts train as before, and what is not recorded is not judged."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from compose_sim.node.rank.torch_hooks.private_names import NAMES
from tests.node.rank.torch_hooks import next_torch

pytestmark = pytest.mark.train

EMULATION = {"emulate", "accelerator", "amp", "generators", "memory", "meshes", "refusals", "workers"}
SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.all_reduce(loss.detach())
torch.save(model.module.state_dict(), f"{dist.get_rank()}.pt")
print("weights", *[f"{each:.6f}" for each in model.module.weight.flatten().tolist()])
dist.destroy_process_group()
"""


def names_of(*wanted: str, emulation: bool = False) -> list[str]:
    """Return the names of these features; without any, of all features that are part of the emulation, or of all that are not."""
    chosen = [
        each for each in NAMES if (each.feature in wanted if wanted else (each.feature in EMULATION) == emulation)
    ]
    modules = {each.name.rpartition(".")[2]: each.module for each in chosen}
    return [name for name, module in modules.items() if name[0] == "_" != name[1] and is_defined(name, module)]


def is_defined(name: str, module: str) -> bool:
    """Return whether a module of torch defines a name in Python: those of the C extension cannot be renamed."""
    if module.startswith(("torch._C", "torch._VF")):
        return False
    spec = importlib.util.find_spec(module)
    assert spec is not None
    text = Path(spec.origin or "").read_text()
    return re.search(rf"(?:def|class) {name}\b|^{name}\b.*=|\bself\.{name}\b.* = ", text, re.MULTILINE) is not None


def report_of(folder: Path, *arguments: str, torch: Path | None = None) -> tuple[int, dict[str, Any], str]:
    """Run a command on two nodes, and return its exit code, the report, and what else it printed."""
    (folder / "train.py").write_text(SCRIPT)
    paths = [str(torch)] if torch else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}
    verb, *rest = arguments
    command = [
        sys.executable,
        "-m",
        "compose_sim",
        verb,
        "--engine",
        "local",
        "--nodes",
        "2",
        "--json",
        *rest,
        "train.py",
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def without_observers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A torch that has renamed everything that observers, the replay and the rest outside the emulation use."""
    return next_torch.make(tmp_path_factory.mktemp("torch"), names_of())


def off(report: dict[str, Any]) -> Collection[str]:
    """Return the notes about features that are off."""
    return [each for each in report["notes"] if each.startswith(f"torch {next_torch.VERSION}: ")]


def test_a_script_trains_as_before_and_the_report_says_what_is_not_recorded(
    tmp_path: Path, without_observers: Path
) -> None:
    code, report, _ = report_of(tmp_path, "up", "--gpus", "none", torch=without_observers)

    assert (code, report["verdict"]) == (0, "passed")
    assert any("loaded batches" in each for each in off(report))
    assert all(" is missing" in each for each in off(report))


def test_check_judges_nothing_by_what_is_not_recorded(tmp_path: Path, without_observers: Path) -> None:
    code, report, _ = report_of(tmp_path, "check", "--gpus", "none", torch=without_observers)

    by_id = {each["id"]: each for each in report["checks"]}
    assert (code, report["verdict"]) == (0, "passed")
    assert {by_id[name]["status"] for name in ("sampler-overlap", "set-epoch", "matches-single")} == {"not-applicable"}
    assert not [each["id"] for each in report["checks"] if each["status"] in ("failed", "warned")]
    assert next_torch.VERSION in by_id["sampler-overlap"]["detail"]


@pytest.mark.parametrize("launcher", ["warm", "env"])
def test_without_emulation_no_rank_starts_and_the_way_out_is_named(tmp_path: Path, launcher: str) -> None:
    torch = next_torch.make(tmp_path / "torch", names_of("emulate"))
    (tmp_path / "project").mkdir()

    code, report, _ = report_of(tmp_path / "project", "up", "--gpus", "emulated", "--launcher", launcher, torch=torch)

    cause = report["cause"]
    assert (code, report["verdict"], cause["kind"]) == (3, "inconclusive", "gap")
    assert next_torch.VERSION in cause["message"]
    assert "--gpus none" in cause["traceback"]
    assert not list((tmp_path / "project").glob("*.pt"))


def test_parts_of_the_emulation_may_be_missing(tmp_path: Path) -> None:
    torch = next_torch.make(tmp_path / "torch", names_of("memory", "generators", "meshes", "workers"))
    (tmp_path / "project").mkdir()

    code, report, _ = report_of(tmp_path / "project", "up", "--gpus", "emulated", torch=torch)

    assert (code, report["verdict"]) == (0, "passed")
    assert any("_record_memory_history is missing" in each for each in off(report))


def test_an_exception_of_our_patches_is_not_the_scripts(tmp_path: Path) -> None:
    """Torch's own code raises if what we put in the place of NCCL is not what it expects."""
    torch = next_torch.make(tmp_path / "torch", [])
    file = torch / "torch" / "distributed" / "distributed_c10d.py"
    text = file.read_text()
    file.unlink()
    file.write_text(
        text.replace(
            "    global _world\n\n    if group_name in", "    ProcessGroupNCCL(new_argument=1)\n    if group_name in", 1
        )
    )
    (tmp_path / "project").mkdir()

    code, report, _ = report_of(tmp_path / "project", "up", "--gpus", "emulated", torch=torch)

    cause = report["cause"]
    assert (code, report["verdict"], cause["kind"]) == (3, "inconclusive", "gap")
    assert cause["message"].startswith("composesim could not emulate CUDA with torch 2.99.0: TypeError")
