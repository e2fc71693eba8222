"""A module of the project is imported in place of a loaded one of the same name, as a new Python would do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from compose_sim.node.shared.shadowing import forget, shadowed_modules


def test_only_loaded_modules_are_shadowed(tmp_path: Path) -> None:
    for name in ("calendar.py", "zzz_mine.py", "os.py", "sys.py", "notes.txt", "json.txt"):
        (tmp_path / name).write_text("")
    (tmp_path / "argparse").mkdir()  # a folder without __init__.py does not take the place of a module
    (tmp_path / "decimal").mkdir()
    (tmp_path / "decimal" / "__init__.py").write_text("")
    for name in ("calendar", "json", "argparse", "decimal"):
        __import__(name)

    assert shadowed_modules(str(tmp_path)) == ["calendar", "decimal"]
    assert shadowed_modules(str(tmp_path / "nowhere")) == []


def test_a_module_of_the_folder_itself_shadows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zzz_mine.py").write_text("")
    mine = ModuleType("zzz_mine")
    mine.__file__ = str(tmp_path / "zzz_mine.py")
    monkeypatch.setitem(sys.modules, "zzz_mine", mine)

    assert shadowed_modules(str(tmp_path)) == []


def test_what_is_forgotten_goes_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zzz_one", "zzz_one.part", "zzz_other"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    forget(["zzz_one"])
    assert [name for name in sys.modules if name.startswith("zzz")] == ["zzz_other"]
