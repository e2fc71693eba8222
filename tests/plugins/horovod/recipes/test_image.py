"""`image build --recipe horovod` makes an image in which the real Horovod runs, without what was only needed to build it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import ROOT
from tests.recipes.images import build, in_image, run

__all__ = ["build"]
pytestmark = [pytest.mark.recipes, pytest.mark.docker]
SUM_OF_RANKS = (
    "import torch, horovod.torch as hvd; hvd.init(); print('sum', hvd.allreduce(torch.ones(1), op=hvd.Sum).item())"
)


def test_horovod_comes_from_a_wheel_with_sshd_and_no_key(
    build: Callable[..., str], recipes_python: Path, tmp_path: Path
) -> None:
    built = Path(run(ROOT / "scripts" / "recipes.sh", "--wheels"))
    for wheel in built.glob("*.whl"):
        shutil.copy(wheel, tmp_path)
    index = ["--extra-index-url", os.environ["TORCH_INDEX"]] if os.environ.get("TORCH_INDEX") else []
    torch = f"torch=={importlib.metadata.version('torch')}"
    run(recipes_python, "-m", "pip", "download", "-q", "--no-deps", *index, "--dest", tmp_path, torch)

    tag = build("horovod", "--wheels", str(tmp_path), f"--torch={torch}")

    said = in_image(tag, "horovodrun", "--gloo", "-np", "2", "python3", "-W", "ignore", "-c", SUM_OF_RANKS)
    assert said.count("sum 2.0") == 2
    assert in_image(tag, "sh", "-c", "ls /etc/ssh /usr/sbin/sshd").split().count("/usr/sbin/sshd") == 1
    assert "ssh_host_" not in in_image(tag, "ls", "/etc/ssh")
