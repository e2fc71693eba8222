"""Write a report as JUnit XML for CI systems: a test case for each check, each expectation of a scenario, and each rank.

The format follows Jenkins' schema (tests/core/junit-10.xsd), which GitLab, GitHub's actions and pytest use as well.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from compose_sim.core.report.report import Cause, CheckResult, ExpectationResult, Report

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
