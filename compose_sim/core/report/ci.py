"""Write a report for CI systems: as JUnit XML, and for a GitHub Actions job.

JUnit has a test case for each check, each expectation of a scenario, and each rank. The format follows Jenkins' schema
(tests/core/junit-10.xsd), which GitLab, GitHub's actions and pytest use as well. A GitHub job gets annotations at lines of code,
and a table for the summary of the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from compose_sim.core.report.report import Cause, CheckResult, CheckStatus, ExpectationResult, MistakeReport, Report

# Characters that XML 1.0 cannot carry, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """Return the report as one test suite. A warning is a test that passed, with the warning as the output."""
    name = f"composesim.{_class_name(report.program)}"
    suite = Element("testsuite", name=xml_text(f"composesim {report.program}"))
    for check in report.checks:
        _check(suite, name, check)
    if report.coverage:
        _coverage(suite, f"{name}.coverage", report)
    for mistake in report.mistakes:
        _mistake(suite, f"{name}.self-test", mistake)
    for expectation in report.expectations:
        _expectation(suite, f"{name}.{report.scenario.name if report.scenario else ''}", expectation)
    _ranks(suite, f"{name}.ranks", report)
    attributes = {
        "tests": len(suite.findall("testcase")),
        "errors": len(suite.findall("testcase/error")),
        "failures": len(suite.findall("testcase/failure")),
        "skipped": len(suite.findall("testcase/skipped")),
        "time": f"{report.timings.total_s or 0.0:.3f}",
        "hostname": report.versions.get("host") or "localhost",
    }
    if report.timings.started_at is not None:
        started = datetime.fromtimestamp(report.timings.started_at, UTC)
        attributes["timestamp"] = started.isoformat(timespec="seconds")
    for key, value in attributes.items():
        suite.set(key, xml_text(str(value)))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _check(suite: Element, class_name: str, result: CheckResult) -> None:
    case = _case(suite, class_name, result.id)
    lines = [
        result.detail,
        f"follows from: {result.follows}" if result.follows else "",
        f"fix: {result.fix}" if result.fix else "",
        f"at {result.place.file}:{result.place.line}" if result.place else "",
    ]
    text = "\n".join(line for line in lines if line)
    if result.status == "failed":
        _child(case, "failure", text, message=result.detail, type=result.id)
    elif result.status == "not-applicable":
        _child(case, "skipped", "", message=result.detail)
    else:
        _child(case, "system-out", ("warned: " if result.status == "warned" else "") + text)


def _coverage(suite: Element, class_name: str, report: Report) -> None:
    """Add a case for each thing to compare. What was not compared is skipped; if that decided the verdict, it is an error."""
    missing = report.coverage.missing if report.coverage else {}
    for subject in ("replicas", "gradients", "samples"):
        case = _case(suite, class_name, subject)
        if subject in missing:
            _child(case, "skipped", "", message=f"not judged: {missing[subject]}")
    if report.cause and report.cause.kind == "coverage":
        _cause(_case(suite, class_name, "verdict"), "error", report.cause)


def _mistake(suite: Element, class_name: str, mistake: MistakeReport) -> None:
    """Add a planted mistake; one that the checks do not find is skipped, as it says nothing about the script."""
    case = _case(suite, class_name, f"{mistake.id}: {mistake.text}")
    if mistake.status == "found":
        _child(case, "system-out", f"found by {', '.join(mistake.checks) or mistake.why}")
    else:
        _child(case, "skipped", "", message=f"{mistake.status.replace('-', ' ')}: {mistake.why}")


def _expectation(suite: Element, class_name: str, result: ExpectationResult) -> None:
    """Add an expectation. One that cannot be evaluated is an error: a job that proves nothing must not be green."""
    case = _case(suite, class_name, f"{result.id} {result.wanted}")
    if result.status == "passed":
        _child(case, "system-out", result.detail)
    else:
        tag = "failure" if result.status == "failed" else "error"
        _child(case, tag, result.detail, message=result.detail, type=result.id)


def _ranks(suite: Element, class_name: str, report: Report) -> None:
    """Add a case for each rank. The cause of a failed run is the failure of a rank, or an error of the run."""
    cause = report.cause if report.run_failed else None
    for node in report.nodes:
        for rank in node.ranks:
            case = _case(suite, class_name, f"rank {rank} on {node.name}")
            if cause and rank == cause.rank:
                _cause(case, "failure", cause)
            elif report.run_failed:
                _child(case, "skipped", "", message=f"the run {report.verdict} elsewhere")
    if report.run_failed and (cause is None or cause.rank is None):
        _cause(_case(suite, class_name, "run"), "error", cause or Cause(kind=report.verdict, message=report.verdict))


def _cause(case: Element, tag: str, cause: Cause) -> None:
    _child(case, tag, cause.traceback or cause.message, message=cause.message, type=cause.kind)


def _case(suite: Element, class_name: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=xml_text(class_name), name=xml_text(name), time="0")


def _child(case: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(case, tag, {key: xml_text(value) for key, value in attributes.items()}).text = xml_text(text)


def _class_name(program: str) -> str:
    """Return `train` for `examples/train.py --epochs 3`, `tools.train` for `-m tools.train`."""
    target, _, _ = program.removeprefix("-m ").partition(" ")
    return target.rpartition("/")[2].removesuffix(".py")


def xml_text(text: str) -> str:
    """Return the text with each character that XML cannot carry replaced by its number, as in a Python string."""
    return _ILLEGAL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


MAX_ANNOTATIONS = 10  # per step and level; GitHub silently drops the others
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
    return [command for each in commands.values() for command in each[:MAX_ANNOTATIONS]]


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
