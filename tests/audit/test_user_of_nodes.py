"""In a project of root, `--user` takes the rights of root from the nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.audit.test_hostile_script import composesim

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose another user"),
]
SCRIPT = """
import os
from pathlib import Path
Path(os.environ["COMPOSESIM_SHARED"], "mine").touch()
try:
    Path("theirs").touch()
except PermissionError:
    print("refused for", os.getuid())
"""


def test_nodes_of_another_user_write_to_the_shared_storage_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--engine", "docker", "--user", "nobody", "--launcher", "env", "--nodes", "1", "--name", "as-nobody")

    unreadable = composesim(tmp_path, "up", *words, "train.py", check=2)
    tmp_path.chmod(0o755)
    done = composesim(tmp_path, "up", *words, "train.py", check=0)

    assert f"chmod o+rx {tmp_path}" in unreadable.stdout
    assert "refused for 65534" in done.stdout
    assert not (tmp_path / "theirs").exists()
    assert (tmp_path / ".composesim" / "runs" / "as-nobody" / "shared" / "mine").stat().st_uid == 65534
