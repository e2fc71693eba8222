"""A rank refuses a pickled function that its Python cannot load."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import cloudpickle
import pytest

from compose_sim.node.rank import function_call

UNPICKLABLE_HERE = b"cunheard_of\nmodule\n."


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ([3, 2], "train.. was pickled by Python 3.2, and this node runs Python 3"),
        (list(sys.version_info[:2]), "train.. cannot be loaded on this node: No module named 'unheard_of'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: list[int], message: str
) -> None:
    folder = tmp_path / "call"
    shutil.copytree(Path(cloudpickle.__file__).parent, folder / "cloudpickle")
    (folder / "call.pickle").write_bytes(UNPICKLABLE_HERE)
    about = {"name": "train()", "python": python, "by_value": True, "path": [], "sources": {}}
    (folder / "call.json").write_text(json.dumps(about))
    monkeypatch.setenv("COMPOSESIM_SHARED", str(tmp_path))

    with pytest.raises(RuntimeError, match=message):
        function_call.main(["call"])
