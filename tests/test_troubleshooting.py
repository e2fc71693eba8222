"""The page of errors quotes texts that composesim prints, and leaves out none of those that keep a run from starting."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from compose_sim.engine.host import docker_facts
from compose_sim.errors import _RESOURCES
from tests.builders import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = [text for row in re.findall(r"^\| (`.*?) \| ", PAGE, re.MULTILINE) for text in re.findall(r"`([^`]+)`", row)]
# What Python, torch and gloo print
OF_OTHERS = {
    *("ModuleNotFoundError: No module named", "FileNotFoundError", "Connection closed by peer"),
    "Is there a distributed collective mismatch in your code?",
}


def texts_of(source: str) -> list[str]:
    """Return the constant texts in Python source, also the constant parts of f-strings."""
    return [
        node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and type(node.value) is str
    ]


ALL_TEXTS = "\n".join(
    text
    for path in (ROOT / "compose_sim").rglob("*.py")
    if "templates" not in path.parts
    for text in texts_of(path.read_text())
)


@pytest.mark.parametrize("text", sorted({*QUOTED} - OF_OTHERS))
def test_a_text_is_one_that_composesim_prints(text: str) -> None:
    assert all(part in ALL_TEXTS for part in re.split(r" NAME|SIG\w+", text) if part.strip()), text


def test_every_resource_that_may_be_used_up_is_listed() -> None:
    assert [message for message, _ in _RESOURCES.values() if message not in QUOTED] == []


def test_every_reason_against_docker_is_listed() -> None:
    tree = ast.parse(Path(docker_facts.__file__).read_text())
    given = [
        word.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "reason"
    ]
    texts = [node.value for each in given for node in ast.walk(each) if isinstance(node, ast.Constant)]
    reasons = [text.strip(" '") for text in map(str, texts) if len(text) > 30]
    missing = [reason for reason in reasons if not any(text in reason or reason in text for text in QUOTED)]

    assert len(reasons) > 2
    assert missing == []
