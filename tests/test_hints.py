"""No hint destroys what belongs to the user: a person types it without thinking."""

from __future__ import annotations

import ast
import re

from tests.builders import ROOT

DESTROYS = re.compile(r"\brm\b|--force\b|--purge\b|--yes\b|\bgit (?:reset|clean|checkout)\b|>(?!=)\s*\w")
# Hints that only repeat what the user typed, or that start something without deleting anything
HARMLESS = {
    "--force starts them nevertheless",
    "m …; --force starts the nodes nevertheless",
    " --yes",
    " --purge",
}


def hints_in(source: str) -> set[str]:
    """Return the constant parts of everything that is passed as `hint`, or assigned to a variable of that name."""
    tree = ast.parse(source)
    given: list[ast.AST] = [
        word.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg == "hint"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any("hint" in ast.unparse(each).lower() for each in node.targets):
            given.append(node.value)
    constants = (node for each in given for node in ast.walk(each) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def test_no_hint_deletes_or_overwrites_files() -> None:
    files = [path for path in (ROOT / "compose_sim").rglob("*.py") if "templates" not in path.parts]
    hints = {hint for path in files for hint in hints_in(path.read_text())}

    assert len(hints) > 200
    assert {hint for hint in hints if DESTROYS.search(hint)} - HARMLESS == set()
