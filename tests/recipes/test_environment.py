"""The frameworks are installed in the versions of the images, and work together in one Python."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT

pytestmark = pytest.mark.recipes
FOLDERS = [path for top in (".", "compose_sim/plugins/*") for path in ROOT.glob(f"{top}/templates/image/requirements")]


def run(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_what_images_are_pinned_to(recipes_python: Path) -> None:
    text = "".join(file.read_text() for folder in FOLDERS for file in folder.glob("*.txt"))
    pins = dict(re.findall(r"^([\w-]+)(?:\[.*\])?==(\S+)$", text, re.MULTILINE))
    assert {"horovod", "paddlepaddle", "ray", "gymnasium"} <= set(pins)

    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    versions = run(recipes_python, "-c", code, *pins).split()

    assert {name: version.partition("+")[0] for name, version in zip(pins, versions, strict=True)} == pins


def test_all_are_imported_in_one_process(recipes_python: Path) -> None:
    """Each brings a separate protobuf, gRPC or OpenMP: installing side by side does not mean that they can be loaded."""
    code = "import ray.rllib, ray.train.torch, ray.tune, gymnasium, paddle, horovod.torch; print('loaded')"

    assert run(recipes_python, "-W", "ignore", "-c", code).splitlines()[-1] == "loaded"


def test_horovod_is_built_for_torch_and_gloo(recipes_python: Path) -> None:
    said = run(recipes_python.parent / "horovodrun", "--check-build")

    assert "[X] PyTorch" in said
    assert "[X] Gloo" in said


def test_ray_starts_without_the_grammar_that_jupyter_brings(recipes_python: Path) -> None:
    """Every process of Ray imports jsonschema, which imports this if it is installed: most of the CPU time of the start."""
    code = "import sys, ray; print('rfc3987_syntax' in sys.modules, 'jsonschema' in sys.modules)"

    assert run(recipes_python, "-c", code).split() == ["False", "True"]
