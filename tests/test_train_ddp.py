"""The default workload learns, gives the same result at any world size, and resumes from a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PATIENCE_S, ROOT

SCRIPT = ROOT / "train_ddp.py"
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

pytestmark = pytest.mark.train


@dataclass(frozen=True, kw_only=True)
class Training:
    """The results of one training: metrics, other output, and weights."""

    metrics: list[dict[str, Any]]
    stderr: str
    weights: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return float(self.metrics[-1]["accuracy"])


def train(folder: Path, *arguments: str, ranks: int = 1) -> Training:
    """Train on `ranks` processes under torchrun, with the checkpoint in `folder`."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = run_python(*torchrun, str(SCRIPT), "--checkpoint", str(folder), *arguments)
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in done.stdout.splitlines()]
    return Training(metrics=metrics, stderr=done.stderr, weights=read_checkpoint(folder)["model"])


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def read_checkpoint(folder: Path) -> dict[str, Any]:
    import torch

    state: dict[str, Any] = torch.load(folder / "checkpoint.pt", weights_only=True)
    return state


def farthest(some: dict[str, Any], others: dict[str, Any]) -> float:
    """Return the largest difference between two sets of weights, element by element."""
    assert some.keys() == others.keys()
    return max(float((some[name] - others[name]).abs().max()) for name in some)


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Training:
    return train(tmp_path_factory.mktemp("one-rank"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Train two epochs on two ranks, without a stop."""
    return train(tmp_path_factory.mktemp("straight"), "--epochs", "2", ranks=2)


def test_one_rank_reads_95_percent_of_the_test_images(one_rank: Training) -> None:
    assert one_rank.accuracy >= 0.95


def test_more_ranks_learn_the_same(one_rank: Training, tmp_path: Path) -> None:
    """The ranks divide the same batches, so the weights differ by rounding only."""
    several = train(tmp_path, ranks=2)

    assert several.accuracy >= 0.95
    assert farthest(several.weights, one_rank.weights) < 1e-3


def test_ranks_with_unequal_shares_learn_as_well(tmp_path: Path) -> None:
    several = train(tmp_path, ranks=3)

    assert several.accuracy >= 0.95
    assert several.metrics[-1]["step"] == 110, "as many steps as any other number of ranks takes"


def test_metrics_are_json_lines_of_one_rank_with_growing_steps_and_falling_loss(straight: Training) -> None:
    *steps, last = straight.metrics

    assert [line["step"] for line in steps] == list(range(5, 45, 5))
    assert [line["epoch"] for line in steps] == [0] * 4 + [1] * 4
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    assert last.keys() == {"step", "epoch", "accuracy"}
    assert last["step"] == 44


def test_resume_ends_with_the_weights_of_a_training_that_never_stopped(straight: Training, tmp_path: Path) -> None:
    train(tmp_path, "--epochs", "1", ranks=2)

    resumed = train(tmp_path, "--epochs", "2", "--resume", ranks=2)

    assert resumed.metrics[0]["step"] == 25
    assert resumed.metrics[-1] == straight.metrics[-1]
    assert farthest(resumed.weights, straight.weights) == 0


def test_after_a_killed_rank_fewer_go_on_in_the_middle_of_the_epoch(straight: Training, tmp_path: Path) -> None:
    """An elastic launcher starts the same command again, without --resume, and sets a variable."""
    dying = tmp_path / "dying.py"
    dying.write_text(
        "import os, runpy, signal, sys\n"
        "from torch.optim.optimizer import register_optimizer_step_pre_hook\n"
        "sys.argv.pop(0)\n"
        "steps = 0\n"
        "def die_at_the_30th(*_):\n"
        "    global steps\n"
        "    steps += 1\n"
        "    if steps == 30 and os.environ['RANK'] == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "register_optimizer_step_pre_hook(die_at_the_30th)\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    arguments = (str(SCRIPT), "--checkpoint", str(tmp_path), "--epochs", "2", "--checkpoint-every", "7")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    killed = run_python(*torchrun, str(dying), *arguments)
    restarted = run_python(*arguments, **ALONE, TORCHELASTIC_RESTART_COUNT="1")

    assert [json.loads(line)["step"] for line in killed.stdout.splitlines()] == [5, 10, 15, 20, 25]
    assert killed.returncode != 0
    assert restarted.returncode == 0, restarted.stderr
    assert [json.loads(line)["step"] for line in restarted.stdout.splitlines()] == [30, 35, 40, 44], "from step 28 on"
    assert farthest(read_checkpoint(tmp_path)["model"], straight.weights) < 1e-3


def test_a_plain_process_starts_anew_beside_an_old_checkpoint_and_says_nothing_but_its_metrics(tmp_path: Path) -> None:
    """With the environment only and no launcher, no warning is printed. The run's folder gets the checkpoint."""
    old = tmp_path / "checkpoint.pt"
    old.write_bytes(b"of another training")
    done = run_python(str(SCRIPT), "--epochs", "1", **ALONE, COMPOSESIM_SHARED=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")
    metrics = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in metrics] == [5, 10, 15, 20, 22]
    assert list(tmp_path.iterdir()) == [old]
    assert read_checkpoint(tmp_path)["model"].keys()
