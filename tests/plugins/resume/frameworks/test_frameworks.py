"""Check scripts of Lightning, Accelerate, Transformers and torchdata that resume rightly, and wrong twins of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.resume.frameworks.pairs import PAIRS, SCRIPTS
from tests.plugins.resume.pairs import Pair, with_marks, write
from tests.plugins.resume.test_pairs import check_resume


@pytest.mark.recipes
@pytest.mark.parametrize("pair", with_marks(PAIRS, lambda pair: f"{pair.script} {bool(pair.missing)}"))
def test_the_state_that_is_missing_is_named_and_right_scripts_pass(
    pair: Pair, tmp_path: Path, recipes_python: Path
) -> None:
    script = write(pair, tmp_path, SCRIPTS)

    report = check_resume(tmp_path, "--nodes", "1", "--nproc-per-node", "2", pair.script, python=recipes_python)

    assert report["checks"], report["cause"]
    (result,) = report["checks"]
    if pair.missing:
        assert (report["verdict"], result["status"]) == ("failed", "failed"), result["detail"]
        assert result["detail"].partition(":")[0] == pair.missing
        assert result["place"]["file"] == str(script)
    else:
        assert (report["verdict"], result["status"]) == ("passed", "passed"), result["detail"]
