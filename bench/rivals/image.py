"""Build the image for rivals, with bench/image.sh; for rivals that mount nothing, the same image with the script in it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import NotMeasurableError
from bench.setting import BENCH, Setting

BASE = "composesim-bench:1"
WITH_SCRIPT = "composesim-bench:script"
SCRIPT = "/bench/train_ddp.py"  # its path in WITH_SCRIPT


def build(setting: Setting) -> None:
    """Build BASE, unless it exists.

    Raises:
        NotMeasurableError: it cannot be built here; the text is the last line of the build.
    """
    setting.require_engine()
    print(f"  making {BASE}, unless it is there; about a minute", file=sys.stderr, flush=True)
    with tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run(["sh", BENCH / "image.sh", setting.python], stderr=errors).returncode
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if code != 0:
        raise NotMeasurableError(f"{BASE} cannot be built: {lines[-1] if lines else f'image.sh exited with {code}'}")


def remove_script() -> None:
    subprocess.run(["docker", "image", "rm", WITH_SCRIPT], capture_output=True)


def add_script(setting: Setting) -> str:
    """Build WITH_SCRIPT from BASE, and return the id: given a tag, TorchX would first query a registry."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "Dockerfile")
        recipe.write_text(f"FROM {BASE}\nCOPY train_ddp.py {SCRIPT}\nCOPY data {Path(SCRIPT).parent / 'data'}\n")
        command = ["docker", "build", "--quiet", "--tag", WITH_SCRIPT, "--file", str(recipe), str(setting.folder)]
        answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        raise NotMeasurableError(f"{WITH_SCRIPT} cannot be built: {answer.stderr.strip()[-300:]}")
    shown = subprocess.run(
        ["docker", "image", "inspect", "--format", "{{.Id}}", WITH_SCRIPT], capture_output=True, text=True, check=True
    )
    return shown.stdout.strip()
