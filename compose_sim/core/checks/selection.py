"""Which check is meant? Ids as people type them, and which of a report's results deserve a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compose_sim.core.checks import FAILED, WARNED


def complaints(results: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of the checks of a report those that failed or warned."""
    return [result for result in results if result["status"] in (FAILED, WARNED)]


def check_exit_code(report: Mapping[str, Any]) -> int:
    """What `check` ends with: as the run did where it did not pass, else 1 where a check failed."""
    return int(report["exit_code"]) or int(any(result["status"] == FAILED for result in report["checks"]))


def failed_by_itself(report: Mapping[str, Any]) -> bool:
    """Whether the run did not pass, whatever its checks and expectations say: then its cause is worth a word of its own."""
    cause = report["cause"]
    return bool(report["verdict"] != "passed" and not (cause and cause["kind"] in ("check", "expectation")))
