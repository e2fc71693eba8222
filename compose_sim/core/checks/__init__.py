"""Is this distributed code right? The checks, one file each, in the order in which a report lists them.

A check is a module `core/checks/<id with underscores>.py` with

    QUESTION   what it asks, as one short sentence
    judge      a pure function of a Case: the Result

Its page is `docs/checks/<id>.md`. Causes stand before what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import CheckResult, CheckStatus, Place
from compose_sim.core.request.check_ids import IDS
from compose_sim.core.verdict.stalled_rank import Standing

PASSED: Final = "passed"
FAILED: Final = "failed"
WARNED: Final = "warned"
NOT_APPLICABLE: Final = "not-applicable"
BROKEN = "this check itself is broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a check judges: a run that is over, seen from inside its ranks and from outside."""

    observed: Observed
    verdict: str  # of the run: passed, failed, hung, timeout, …
    cause: Mapping[str, Any] | None = None  # as in a report: node, rank, kind, message, traceback
    logs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # what each rank printed, by line
    stalls: tuple[Standing, ...] = ()  # where each rank stood when nothing moved any more (core/verdict/hang.py)
    single: Observed | None = None  # the replay at world size 1, where `check` made one
    alone: Mapping[int, Observed] = field(default_factory=dict)  # the replay of one rank's batches alone, by rank
    why_no_single: str = ""  # why there is no replay, where that is known
    tolerance: float = 1e-3
    why_not: str = ""  # why no check of distributed code applies: what ran was no script of torch.distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check found: `detail` is the evidence on one line, `fix` what to change; `file` and `line` of the person's code."""

    status: CheckStatus
    detail: str
    fix: str = ""
    file: str | None = None
    line: int | None = None
    ranks: tuple[int, ...] = ()
    id: str = ""

    def to_report(self) -> CheckResult:
        """Return the result as the report holds it."""
        return CheckResult(
            id=self.id,
            status=self.status,
            detail=self.detail,
            fix=self.fix or None,
            place=Place(file=self.file, line=self.line) if self.file else None,
            ranks=self.ranks,
        )


def passed(detail: str, **more: Any) -> Result:
    """Nothing is wrong; `detail` says what was looked at."""
    return Result(status=PASSED, detail=detail, **more)


def failed(detail: str, *, fix: str, **more: Any) -> Result:
    """The code is wrong: the evidence, and the fix."""
    return Result(status=FAILED, detail=detail, fix=fix, **more)


def warned(detail: str, *, fix: str, **more: Any) -> Result:
    """The code may be meant so, but often is not."""
    return Result(status=WARNED, detail=detail, fix=fix, **more)


def not_applicable(reason: str) -> Result:
    """There is nothing to judge, and why."""
    return Result(status=NOT_APPLICABLE, detail=reason)


def run_checks(case: Case, *, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> tuple[Result, ...]:
    """The results of the chosen checks, in the order of IDS."""
    from dataclasses import replace

    return tuple(replace(_judge(name, case), id=name) for name in chosen(only, skip))


def chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of the checks that are asked for, in the order of IDS."""
    return tuple(name for name in IDS if (not only or name in only) and name not in skip)


def question(name: str) -> str:
    """What a check asks."""
    text: str = _module(name).QUESTION
    return text


def why_no_check(launcher: str) -> str:
    """Why the checks, all but that of hangs, cannot judge what a launcher starts; nothing where they can."""
    judges = "checks judge scripts of torch.distributed"
    return f"{judges}, and this one ran under paddle.distributed.launch" if launcher == "paddle" else ""


def _judge(name: str, case: Case) -> Result:
    if case.why_not and name != "hang":
        return not_applicable(case.why_not)
    try:
        result: Result = _module(name).judge(case)
    except Exception as error:  # noqa: BLE001 - a mistake in one check must cost nobody the report
        return not_applicable(f"{BROKEN} ({type(error).__name__}: {error}): please report it")
    return result


def _module(name: str) -> Any:
    return import_module(f"compose_sim.core.checks.rules.{name.replace('-', '_')}")
