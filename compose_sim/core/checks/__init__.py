"""Judge whether distributed code is right: the checks, one file each in `rules/`, in the order in which a report lists them.

A check is a module `core/checks/rules/<id with underscores>.py` with

    QUESTION   what it asks, as one short sentence
    judge      a pure function of a Case that returns the Result

Each check has a page `docs/checks/<id>.md`. Causes are listed before their consequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final

from compose_sim.core.checks.consequences import first_cause
from compose_sim.core.checks.unrecorded import why_not_judged
from compose_sim.core.checks.wording import parameter_names, with_names
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.places import Place as ReportPlace
from compose_sim.core.report.report import Cause, CheckResult, CheckStatus
from compose_sim.core.request.check_ids import IDS
from compose_sim.core.verdict.stalled_rank import Standing
from compose_sim.node.records.record import Place
from compose_sim.node.records.script import FeatureOff

PASSED: Final = "passed"
FAILED: Final = "failed"
WARNED: Final = "warned"
NOT_APPLICABLE: Final = "not-applicable"
BROKEN = "this check itself is broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a check judges: a finished run, seen from inside its ranks and from outside."""

    observed: Observed
    verdict: str  # of the run: passed, failed, hung, timeout, …
    cause: Cause | None = None  # of the run's verdict
    logs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # what each rank printed, by line
    stalls: tuple[Standing, ...] = ()  # where each rank stood when nothing moved any more (core/verdict/hang.py)
    single: Observed | None = None  # the replay at world size 1, if `check` made one
    alone: Mapping[int, Observed] = field(default_factory=dict)  # the replay of one rank's batches alone, by rank
    why_no_single: str = ""  # why there is no replay, if that is known
    tolerance: float = 1e-3
    sources: Mapping[str, str] = field(
        default_factory=dict
    )  # the text of the user's files, by path below the project or absolute
    why_not: str = ""  # why no check applies: the script does not use torch.distributed

    @property
    def failing_rank(self) -> int | None:
        """The rank of the cause, if it is that of one rank."""
        return self.cause.rank if self.cause else None

    @property
    def evidence(self) -> str:
        """The message and the traceback of the cause; "" if there is none."""
        return self.cause.text if self.cause else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check found: `detail` is the evidence on one line, `fix` is what to change, `at` is a line of the user's code."""

    status: CheckStatus
    detail: str
    fix: str = ""
    at: Place | None = None
    ranks: tuple[int, ...] = ()
    id: str = ""
    follows: str = ""  # the check whose failure is the likely cause of this one
    judged_by: str = ""  # if not applicable: the check that compares the same in another way

    def to_report(self) -> CheckResult:
        """Return the result as the report holds it."""
        return CheckResult(
            id=self.id,
            status=self.status,
            detail=self.detail,
            fix=self.fix or None,
            place=ReportPlace(file=self.at[0], line=self.at[1]) if self.at else None,
            ranks=self.ranks,
            follows=self.follows or None,
        )


def passed(detail: str) -> Result:
    """Nothing is wrong; `detail` says what was looked at."""
    return Result(status=PASSED, detail=detail)


def failed(detail: str, *, fix: str, at: Place | None = None, ranks: Iterable[int] = ()) -> Result:
    """The code is wrong: the evidence, and the fix."""
    return Result(status=FAILED, detail=detail, fix=fix, at=at, ranks=tuple(ranks))


def warned(detail: str, *, fix: str, at: Place | None = None, ranks: Iterable[int] = ()) -> Result:
    """The code may be intentional, but often is not."""
    return Result(status=WARNED, detail=detail, fix=fix, at=at, ranks=tuple(ranks))


def not_applicable(reason: str, *, judged_by: str = "") -> Result:
    """There is nothing to judge, and why; another check may compare the same in another way."""
    return Result(status=NOT_APPLICABLE, detail=reason, judged_by=judged_by)


def run_checks(case: Case, *, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> tuple[Result, ...]:
    """Return the results of the chosen checks, in the order of IDS; a problem that follows from a failure names it."""
    results = confirmed([replace(_judge(name, case), id=name) for name in chosen(only, skip)])
    failures = {result.id for result in results if result.status == FAILED}
    names = parameter_names(case.observed)
    results = [
        replace(result, detail=with_names(result.detail, names), fix=with_names(result.fix, names))
        for result in results
    ]
    return tuple(
        replace(result, follows=first_cause(result.id, failures, is_warning=result.status == WARNED))
        if result.status in (FAILED, WARNED)
        else result
        for result in results
    )


def confirmed(results: list[Result]) -> list[Result]:
    """Fail a warning about gradients that are not divided if comparing with one rank shows the same: it tells the exact cause."""
    scale = next((result for result in results if result.id == "loss-scale" and result.status == FAILED), None)
    return [
        replace(result, status=FAILED)
        if scale and result.id == "gradient-mean" and result.status == WARNED and result.at == scale.at
        else result
        for result in results
    ]


def chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids of the chosen checks, in the order of IDS."""
    return tuple(name for name in IDS if (not only or name in only) and name not in skip)


def question(name: str) -> str:
    """Return what a check asks."""
    text: str = _module(name).QUESTION
    return text


def load() -> None:
    """Import all checks, which are otherwise imported when they judge."""
    for name in IDS:
        _module(name)


def why_no_check(launcher: str) -> str:
    """Return why the checks, except the one for hangs, cannot judge what a launcher starts; "" if they can."""
    judges = "checks judge scripts that use torch.distributed"
    return f"{judges}; this one ran under paddle.distributed.launch" if launcher == "paddle" else ""


def _judge(name: str, case: Case) -> Result:
    if case.why_not and name != "hang":
        return not_applicable(case.why_not)
    if case.observed.first(FeatureOff) or (case.single and case.single.first(FeatureOff)):
        return _judge_as_far_as_recorded(name, case)
    return _judged(name, case)


def _judge_as_far_as_recorded(name: str, case: Case) -> Result:
    """Judge, unless the check looks at records that part of the ranks' observers did not write."""
    seen = case.observed.watched()
    single = case.single.watched() if case.single else None
    result = _judged(name, replace(case, observed=seen, single=single))
    looked_at = (seen.looked_at or set()) | ((single.looked_at if single else None) or set())
    why = next((why for each in (case.observed, case.single) if each and (why := why_not_judged(each, looked_at))), "")
    return not_applicable(why) if why else result


def _judged(name: str, case: Case) -> Result:
    try:
        result: Result = _module(name).judge(case)
    except Exception as error:  # noqa: BLE001 - an error in one check must not cost the user the report
        return not_applicable(f"{BROKEN} ({type(error).__name__}: {error}): please report it")
    return result


def _module(name: str) -> Any:
    return import_module(f"compose_sim.core.checks.rules.{name.replace('-', '_')}")
