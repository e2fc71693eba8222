"""The folders that a script adds to sys.path."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.source import added_folders


@pytest.mark.parametrize(
    ("expression", "folder"),
    [
        ('"/srv/helpers"', "/srv/helpers"),
        ('"../shared"', "../shared"),
        ("os.path.dirname(os.path.dirname(os.path.abspath(__file__)))", "/home/a"),
        ('os.path.join(os.path.dirname(__file__), "..", "lib")', "/home/a/project/../lib"),
        ("str(Path(__file__).resolve().parent.parent)", "/home/a"),
        ('str(Path(__file__).parents[1] / "lib")', "/home/a/lib"),
    ],
)
def test_a_folder_of_constants_and_the_file_is_found(expression: str, folder: str) -> None:
    for call in (f"sys.path.insert(0, {expression})", f"sys.path.append({expression})"):
        assert added_folders(f"import sys\n{call}\n", "/home/a/project/train.py") == [folder]


@pytest.mark.parametrize(
    "text",
    [
        "sys.path.insert(0, folder)",
        "sys.path.append(os.environ['LIB'])",
        "sys.path.append(str(Path(__file__).parents[number]))",
        "sys.path.append(os.path.join(root, 'lib'))",
        "path.append('/srv')",
        "sys.path.append(",
        f"sys.path.append({'a(' * 90}1{')' * 90})",
    ],
)
def test_any_other_expression_is_left_out(text: str) -> None:
    assert added_folders(text, "/home/a/project/train.py") == []
