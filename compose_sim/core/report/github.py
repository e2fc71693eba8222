"""Format a report for a GitHub Actions job: annotations at lines of code, and a table for the summary of the job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from compose_sim.core.report.report import CheckStatus, Report

MOST_ANNOTATIONS = 10  # per step and level; GitHub silently drops the others
_LEVELS: dict[CheckStatus, str] = {"failed": "error", "warned": "warning"}
_MARKS: dict[CheckStatus, str] = {"failed": "❌", "warned": "⚠️", "passed": "✔", "not-applicable": "–"}  # in their order
_LONGEST_CELL = 1000
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


def workflow_commands(report: Report, *, path_of: Callable[[str], str]) -> list[str]:
    """Return the workflow commands for failures, warnings and notes; `path_of` makes a path relative to the repository."""
    commands: dict[str, list[str]] = {level: [] for level in (*_LEVELS.values(), "notice")}
    if report.cause and report.run_failed:
        place = _raised_at(report.cause.traceback or "", path_of)
        properties = {**place, "title": f"composesim {report.verdict}"}
        commands["error"].append(_command("error", properties, report.cause.message))
    if report.cause and report.cause.kind == "coverage":
        commands["error"].append(_command("error", {"title": "composesim inconclusive"}, report.cause.message))
    elif report.coverage and report.coverage.text:
        commands["notice"].append(_command("notice", {"title": "composesim coverage"}, report.coverage.text))
    for result in report.checks:
        if not result.is_problem:
            continue
        place = {"file": path_of(result.place.file), "line": str(result.place.line)} if result.place else {}
        text = result.detail + (f"\nFollows from {result.follows}" if result.follows else "")
        text += f"\nFix: {result.fix}" if result.fix else ""
        level = _LEVELS[result.status]
        commands[level].append(_command(level, {**place, "title": f"composesim {result.id}"}, text))
    for hint in report.hints:
        place = {"file": path_of(hint.place.file), "line": str(hint.place.line)}
        commands["notice"].append(_command("notice", {**place, "title": "composesim note"}, hint.text))
    return [command for each in commands.values() for command in each[:MOST_ANNOTATIONS]]


def summary(report: Report, verdict: str) -> str:
    """Return the summary of the step in Markdown: the verdict, and a table of the checks with problems first."""
    results = sorted(report.checks, key=lambda result: list(_MARKS).index(result.status))
    rows = [
        f"| {_MARKS[result.status]} | `{result.id}` | {_cell(result.detail)} | {_cell(result.fix or '')} |"
        for result in results
    ]
    table = ["| | check | evidence | fix |", "|---|---|---|---|", *rows] if rows else []
    return "\n".join([f"### composesim: {_cell(report.program)}", "", _cell(verdict), "", *table, ""])


def without_commands(text: str, *, token: str) -> str:
    """
    Return the text such that the runner of a job executes nothing in it.

    The runner searches every line for `##[`, and the beginning of lines for `::`. The text cannot contain the token that ends the
    pause if the token is new.
    """
    text = text.replace("##[", "## [")
    if "::" not in text:
        return text
    return f"::stop-commands::{token}\n{text}{'' if text.endswith(chr(10)) else chr(10)}::{token}::\n"


def _raised_at(traceback: str, path_of: Callable[[str], str]) -> dict[str, str]:
    """Return the innermost line of a traceback that is in the repository, if any is."""
    for file, line in reversed(_FRAME.findall(traceback)):
        path = path_of(file)
        if not path.startswith(("/", "<")) and "site-packages" not in path:
            return {"file": path, "line": line}
    return {}


def _command(level: str, properties: Mapping[str, str], text: str) -> str:
    escaped = {name: _escaped(value).replace(":", "%3A").replace(",", "%2C") for name, value in properties.items()}
    listed = ",".join(f"{name}={value}" for name, value in escaped.items())
    return f"::{level} {listed}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    """Return the text on one line, with every character escaped that would end the cell or format its content."""
    plain = " ".join(text.split())[:_LONGEST_CELL]
    return re.sub(r"([\\|`*_\[\]])", r"\\\1", plain).replace("<", "&lt;").replace(">", "&gt;")
