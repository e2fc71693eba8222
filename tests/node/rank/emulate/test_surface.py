"""torch's functions for CUDA answer as on a GPU: when CUDA is initialized, default devices, streams, memory, random numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.node.emulated.cuda_surface import PROBES
from tests.node.rank.emulate.conftest import Emulation

pytestmark = pytest.mark.train

PROGRAM = """
import runpy, sys
from compose_sim.node.rank import emulate
emulate.install()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What the probes print with one emulated device, in a process of one rank."""
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0", "COMPOSESIM_EMULATED_GPUS": "1"}
    command = (sys.executable, "-c", PROGRAM, str(ROOT / "tests" / "node" / "emulated" / "cuda_surface.py"))
    environment = {**os.environ, **rank, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=PATIENCE_S, check=True)
    found: dict[str, str] = json.loads(told.stdout.partition("SURFACE ")[2])
    return found


@pytest.mark.parametrize(("expression", "answer"), PROBES, ids=lambda text: text[:60])
def test_the_answer_is_that_of_a_gpu(answers: dict[str, str], expression: str, answer: str) -> None:
    assert answers[expression] == answer


def test_the_version_of_cuda_is_that_of_the_build(emulated: Emulation) -> None:
    """Libraries such as torchvision compare it with the one that they were built for."""
    own = subprocess.check_output([sys.executable, "-c", "import torch; print(torch.version.cuda)"], text=True).strip()

    assert emulated("torch.version.cuda") == ("12.8" if own == "None" else own)
