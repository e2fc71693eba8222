"""What does a GitHub Actions job show of a check? Annotations at the lines of code, and a table in the job's summary, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.selection import failed_by_itself

MOST_OF_A_KIND = 10  # in one step; GitHub drops what is beyond it, without a word
_KINDS = {FAILED: "error", WARNED: "warning"}
_MARKS = {PASSED: "✔", FAILED: "❌", WARNED: "⚠️", NOT_APPLICABLE: "–"}
_MOST_OF_A_DETAIL = 1000
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


def workflow_commands(report: Mapping[str, Any], *, path_of: Callable[[str], str]) -> list[str]:
    """The workflow commands for what failed or warned; `path_of` turns a file's path into one within the repository."""
    commands: list[str] = []
    cause = report["cause"]
    if cause and failed_by_itself(report):
        where = _raised_at(cause["traceback"] or "", path_of)
        commands.append(_command("error", {**where, "title": f"composesim {report['verdict']}"}, str(cause["message"])))
    for status, kind in _KINDS.items():
        for result in (result for result in report["checks"] if result["status"] == status):
            place = result["place"]
            where = {"file": path_of(place["file"]), "line": place["line"]} if place else {}
            text = result["detail"] + (f"\nFix: {result['fix']}" if result["fix"] else "")
            commands.append(_command(kind, {**where, "title": f"composesim {result['id']}"}, text))
    return [
        command
        for kind in _KINDS.values()
        for command in [command for command in commands if command.startswith(f"::{kind} ")][:MOST_OF_A_KIND]
    ]


def summary(report: Mapping[str, Any], words: str) -> str:
    """The table for the step's summary, in Markdown: what is wrong first; `words` is the verdict."""
    order = (FAILED, WARNED, PASSED, NOT_APPLICABLE)
    results: Sequence[Mapping[str, Any]] = sorted(report["checks"], key=lambda result: order.index(result["status"]))
    rows = [
        f"| {_MARKS[result['status']]} | `{result['id']}` | {_cell(result['detail'])} | {_cell(result['fix'] or '')} |"
        for result in results
    ]
    head = ["| | check | what was seen | fix |", "|---|---|---|---|"]
    return "\n".join(
        [f"### composesim: {_cell(report['program'])}", "", _cell(words), "", *(head + rows if rows else []), ""]
    )


def _raised_at(traceback: str, path_of: Callable[[str], str]) -> dict[str, str]:
    """The innermost line of a traceback that is in the repository; nothing where none is."""
    for file, line in reversed(_FRAME.findall(traceback)):
        path = path_of(file)
        if not path.startswith(("/", "<")) and "site-packages" not in path:
            return {"file": path, "line": line}
    return {}


def _command(kind: str, properties: Mapping[str, Any], text: str) -> str:
    told = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{kind} {told}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """One line that no character of it breaks out of its cell."""
    plain = " ".join(text.split())[:_MOST_OF_A_DETAIL]
    for sign in "\\|`<>*_[]":
        plain = (
            plain.replace(sign, f"\\{sign}")
            if sign not in "<>"
            else plain.replace(sign, {"<": "&lt;", ">": "&gt;"}[sign])
        )
    return plain
