"""What do CI systems read of a run? JUnit XML: a test case for each check, each expectation of a scenario, and each rank.

The form is that of Jenkins' schema, which GitLab, GitHub's actions and pytest follow: tests/core/report/junit-10.xsd.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, WARNED
from compose_sim.core.checks.selection import failed_by_itself
from compose_sim.core.scenarios.expectations import INCONCLUSIVE

# All that XML 1.0 cannot carry, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Mapping[str, Any]) -> str:
    """The report as one test suite. What warned has passed, with the warning as its output."""
    name = f"composesim.{_class_name(str(report['program']))}"
    suite = Element("testsuite", name=_text(f"composesim {report['program']}"))
    for result in report.get("checks", ()):
        _check(suite, name, result)
    for result in report.get("expectations", ()):
        _expectation(suite, f"{name}.{report['scenario']['name']}", result)
    _ranks(suite, f"{name}.ranks", report)
    total = report["timings"]["total_s"] or 0.0
    counts = {
        "tests": len(suite.findall("testcase")),
        "errors": len(suite.findall("testcase/error")),
        "failures": len(suite.findall("testcase/failure")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for key, value in {
        **counts,
        "time": f"{total:.3f}",
        "hostname": report["versions"].get("host") or "localhost",
    }.items():
        suite.set(key, _text(str(value)))
    started = report["timings"].get("started_at")
    if started:
        suite.set("timestamp", datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _check(suite: Element, class_name: str, result: Mapping[str, Any]) -> None:
    case = _case(suite, class_name, result["id"])
    place = result["place"]
    lines = [
        result["detail"],
        f"fix: {result['fix']}" if result["fix"] else "",
        f"at {place['file']}:{place['line']}" if place else "",
    ]
    told = "\n".join(line for line in lines if line)
    if result["status"] == FAILED:
        _child(case, "failure", told, message=result["detail"], type=result["id"])
    elif result["status"] == NOT_APPLICABLE:
        _child(case, "skipped", "", message=result["detail"])
    else:
        _child(case, "system-out", ("warned: " if result["status"] == WARNED else "") + told)


def _expectation(suite: Element, class_name: str, result: Mapping[str, Any]) -> None:
    """One that cannot be judged is an error: a job that proves nothing must not be green."""
    case = _case(suite, class_name, f"{result['id']} {result['wanted']}")
    tag = {FAILED: "failure", INCONCLUSIVE: "error"}.get(result["status"])
    if tag:
        _child(case, tag, result["detail"], message=result["detail"], type=result["id"])
    else:
        _child(case, "system-out", result["detail"])


def _ranks(suite: Element, class_name: str, report: Mapping[str, Any]) -> None:
    """One case a rank; what the run failed of is the failure of its rank, or of the run where it was no rank's."""
    cause = report["cause"] if failed_by_itself(report) else None
    guilty = cause["rank"] if cause else None
    for node in report["nodes"]:
        for rank in node["ranks"]:
            case = _case(suite, class_name, f"rank {rank} on {node['name']}")
            if cause and rank == guilty:
                _child(
                    case,
                    "failure",
                    cause["traceback"] or cause["message"],
                    message=cause["message"],
                    type=cause["kind"],
                )
            elif failed_by_itself(report):
                _child(case, "skipped", "", message=f"the run {report['verdict']} elsewhere")
    if failed_by_itself(report) and guilty is None:
        case = _case(suite, class_name, "run")
        message = cause["message"] if cause else report["verdict"]
        told = (cause and cause["traceback"]) or message
        _child(case, "error", told, message=message, type=cause["kind"] if cause else report["verdict"])


def _case(suite: Element, class_name: str, name: str) -> Element:
    return SubElement(suite, "testcase", classname=_text(class_name), name=_text(name), time="0")


def _child(case: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(case, tag, {key: _text(str(value)) for key, value in attributes.items()}).text = _text(text)


def _class_name(program: str) -> str:
    """`train` for `examples/train.py --epochs 3`, `tools.train` for `-m tools.train`."""
    words = program.removeprefix("-m ").split()
    return (words[0] if words else "").rpartition("/")[2].removesuffix(".py")


def _text(text: str) -> str:
    """What XML can carry of it: any other character as its number, as Python writes it in a string."""
    return _ILLEGAL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
