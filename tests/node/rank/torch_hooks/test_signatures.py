"""What composesim puts in the place of torch's functions accepts every call that these accept, by position and by keyword."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.node.rank.torch_hooks.signatures import Signature

pytestmark = pytest.mark.train
SCRIPT = Path(__file__).with_name("signatures.py")


def printed(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "COMPOSESIM_EMULATED_GPUS": "2", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=PATIENCE_S, check=True)
    found: dict[str, Any] = json.loads(done.stdout.partition("SIGNATURES ")[2])
    return found


def refused(ours: Signature | None, theirs: Signature | None) -> list[str]:
    """Return the parameters that torch's function takes and ours does not, or that ours needs besides."""
    if ours is None or theirs is None:
        return []
    kinds = {kind for kind, _, _ in ours}
    takes_any = "VAR_KEYWORD" in kinds
    names = [name for kind, name, _ in ours if kind in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    by_keyword = {name for kind, name, _ in ours if kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")}
    missing = []
    for place, (kind, name, _) in enumerate(theirs):
        if kind == "POSITIONAL_OR_KEYWORD":
            at_place = names[place : place + 1] == [name] or ("VAR_POSITIONAL" in kinds and place >= len(names))
            missing += [] if at_place and (takes_any or name in by_keyword) else [name]
        elif kind == "POSITIONAL_ONLY":
            missing += [] if place < len(names) or "VAR_POSITIONAL" in kinds else [name]
        elif kind == "KEYWORD_ONLY":
            missing += [] if takes_any or name in by_keyword else [name]
        else:
            missing += [] if kind in kinds else [f"*{name}"]
    known = {name for _, name, _ in theirs}
    plain = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    return missing + [
        f"needs {name}" for kind, name, default in ours if kind in plain and not default and name not in known
    ]


def test_what_takes_the_place_of_a_function_accepts_its_calls() -> None:
    before, after = printed()["public"], printed("patched")
    public = {name: refused(ours, before[name]) for name, ours in after["public"].items() if name in before}
    wrapped = {name: refused(*pair) for name, pair in after["wrapped"].items()}

    assert len(public) > 500
    assert {name: missing for name, missing in {**public, **wrapped}.items() if missing} == {}
