"""`export` writes into a project of root without following links."""

from __future__ import annotations

from pathlib import Path

from tests.audit.test_hostile_script import composesim


def test_export_does_not_write_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "job.sh").symlink_to("precious")

    composesim(tmp_path, "export", "torchrun", "-o", "job.sh", "train.py", check=0)

    assert (tmp_path / "precious").read_text() == "precious"
