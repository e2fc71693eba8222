"""Make the next torch: the installed one with another version, in which private names have been renamed.

Every Python file of torch that mentions a name is rewritten, so that torch itself works as before. All other files are links.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import py_compile
import re
from collections.abc import Collection
from pathlib import Path

VERSION = "2.99.0"
_RENAMED = b"_as_torch_names_it_now"
_WITHOUT_PYTHON = ("bin", "include", "lib", "share")


def make(folder: Path, names: Collection[str]) -> Path:
    """Write the next torch, with other names in the place of these, to `folder`; return it, for PYTHONPATH."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    folder.mkdir(exist_ok=True)
    _link(Path(spec.origin or "").parent, folder / "torch", [each.encode() for each in names])
    version = folder / "torch" / "version.py"
    text = version.read_text()
    version.unlink()
    version.write_text(_with_version(r"^__version__ = .*", f"__version__ = '{VERSION}'", text))
    metadata = folder / f"torch-{VERSION}.dist-info"
    metadata.mkdir()
    installed = importlib.metadata.distribution("torch")
    text = installed.read_text("METADATA") or ""
    (metadata / "METADATA").write_text(_with_version(r"^Version: .*", f"Version: {VERSION}", text))
    # Since torch 2.15, they name its backends.
    (metadata / "entry_points.txt").write_text(installed.read_text("entry_points.txt") or "")
    return folder


def _with_version(pattern: str, line: str, text: str) -> str:
    return re.sub(pattern, line, text, count=1, flags=re.MULTILINE)


def _link(source: Path, target: Path, words: Collection[bytes]) -> None:
    """Link the files of a folder with their compiled forms, and rewrite those that contain one of the words."""
    target.mkdir()
    changed = {"version.py"}
    pattern = re.compile(rb"\b(" + b"|".join(words) + rb")\b")
    for entry in os.scandir(source):
        path = Path(entry.path)
        if entry.is_dir() and entry.name not in _WITHOUT_PYTHON:
            if entry.name != "__pycache__":
                _link(path, target / entry.name, words)
            continue
        data = path.read_bytes() if path.suffix == ".py" else b""
        if any(word in data for word in words):
            changed.add(entry.name)
            (target / entry.name).write_bytes(pattern.sub(rb"\1" + _RENAMED, data))
            py_compile.compile(str(target / entry.name))
        else:
            (target / entry.name).symlink_to(path)
    compiled = target / "__pycache__"
    compiled.mkdir(exist_ok=True)
    for file in (source / "__pycache__").glob("*.pyc"):
        if f"{file.name.partition('.')[0]}.py" not in changed:
            (compiled / file.name).symlink_to(file)
