"""The output of `scripts/recipes.sh` in a checkout in which nothing has been built yet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--check"], "recipes.sh: there is no .venv-recipes.\n"),
        ([], "recipes.sh: there is no .venv to take Python and torch's version from. Type: make setup\n"),
        (["--chekc"], "recipes.sh: unknown option '--chekc': --check, --wheels or none\n"),
    ],
)
def test_it_says_what_is_missing_and_makes_nothing(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "scripts").mkdir()
    script = Path(shutil.copy(ROOT / "scripts" / "recipes.sh", tmp_path / "scripts"))

    done = subprocess.run([script, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
