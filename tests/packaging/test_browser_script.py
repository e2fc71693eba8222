"""scripts/browser.sh: without Chromium, tests of the page are skipped on a laptop, and CI fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builders import ROOT


@pytest.mark.parametrize(("variables", "status"), [({}, 0), ({"CI": "true"}, 1)])
def test_a_failed_installation_fails_in_ci_only(tmp_path: Path, variables: dict[str, str], status: int) -> None:
    for name in ("bash", "dirname", "id"):  # neither chromium nor apt-get
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "browser.sh"],
        env={"PATH": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, "apt-get install chromium" in done.stderr) == (status, True)
