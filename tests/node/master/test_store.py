"""The process with the stores of a run says why it cannot serve any."""

from __future__ import annotations

import subprocess
import sys

from tests.builders import ROOT


def test_a_python_without_torch_is_reported_as_an_answer() -> None:
    """`-S` hides installed packages. The first attempt only exits: the master then tries the whole torch."""
    command = [sys.executable, "-S", str(ROOT / "compose_sim" / "node" / "__main__.py"), "store"]

    first, whole = (
        subprocess.run([*command, *arguments], input="", capture_output=True, text=True, timeout=60)
        for arguments in ([], ["--whole"])
    )
    assert (first.stdout, first.returncode) == ("", 1)
    assert (whole.stdout, whole.returncode) == ("error No module named 'torch'\n", 1)
