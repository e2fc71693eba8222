"""Install a rival's packages in a separate virtual environment, created once and kept in bench/.cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.measure import NotMeasurableError
from bench.setting import CACHE


def install(name: str, *requirements: str) -> Path:
    """Return the `bin` folder of the environment, with `requirements` installed.

    Raises:
        NotMeasurableError: the package index does not have them, or does not respond.
    """
    folder = CACHE / name
    done = folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not (done.exists() and done.read_text() == wanted):
        print(f"  installing {', '.join(requirements)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode != 0:
            reason = (answer.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            raise NotMeasurableError(f"cannot be installed from the package index: {reason}")
        done.write_text(wanted)
    return folder / "bin"
