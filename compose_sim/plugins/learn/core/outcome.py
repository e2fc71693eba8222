"""Judge an attempt at a lesson by the evidence of its run: three outcomes, and a finding for each requirement."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import mean
from typing import Any, Literal

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.json_values import MAX_NUMBER
from compose_sim.core.report.report import Report
from compose_sim.core.text import format_count
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import Collective, DdpForward, LaterCollectives
from compose_sim.plugins.learn.core import samples
from compose_sim.plugins.learn.core.lesson import SCRIPT, Lesson, MetricBound, number_text

Status = Literal["passed", "failed", "unjudged"]
Reported = tuple[int, float]  # a rank, and a number of it
_SHOWN_LINES = 6  # of a traceback
_MAX_SHARED = 1000  # things
_STATUS: dict[str, Status] = {"passed": "passed", "failed": "failed", "warned": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Which of some things, numbered from 0, each rank took."""

    what: str  # "adds number"
    count: int
    by_rank: Mapping[int, tuple[int, ...]]  # in order, repeated ones included


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a finished attempt left."""

    report: Report
    observed: Observed
    folder: str = ""  # of the project: left out of paths
    # What the course's program reported, each with the rank that did.
    measured: Mapping[str, tuple[Reported, ...]] = field(default_factory=dict)
    shares: Shares | None = None  # also what it reported
    rounds: Mapping[int, Observed] = field(default_factory=dict)  # what ranks observed, by generation
    endings: Mapping[int, str] = field(default_factory=dict)  # why rounds ended, by generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One requirement, and what was seen."""

    id: str
    status: Status
    detail: str
    place: str = ""  # `01-ranks/script.py:12`
    fix: str = ""  # not shown to students, who have hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an attempt. It is unjudged, not passed, if a requirement could not be judged."""

    status: Status
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    score: Mapping[str, float] = field(default_factory=dict)  # less is better; none unless it is passed

    @property
    def reason(self) -> Finding | None:
        """The first requirement that was not met, else the first that could not be judged."""
        order: tuple[Status, ...] = ("failed", "unjudged")
        return next((each for status in order for each in self.findings if each.status == status), None)


def judge_attempt(lesson: Lesson, evidence: Evidence) -> Outcome:
    """Return the outcome of an attempt, with a finding for each requirement of the lesson, in order."""
    order = lesson.requirements
    found = [*_findings(lesson, evidence)]
    if any(each.status == "failed" for each in found):  # alone, a check may object to a right solution of another kind
        explained = (_check(name, evidence) for name in lesson.required.explained_by)
        found += [each for each in explained if each.status == "failed" and each.place]
    findings = tuple(sorted(found, key=lambda finding: order.index(finding.id)))
    most = {name: max((value for _, value in evidence.measured.get(name, ())), default=-1) for name in lesson.score}
    score = {name: float(value) for name, value in most.items() if 0 <= value <= MAX_NUMBER}  # a NaN is not
    return conclude(findings, seconds=evidence.report.timings.total_s or 0.0, score=score)


def conclude(findings: tuple[Finding, ...], *, seconds: float, score: Mapping[str, float] | None = None) -> Outcome:
    """Return the outcome that follows from findings; the score counts only if it is passed."""
    found = {finding.status for finding in findings}
    status: Status = "failed" if "failed" in found else "passed" if found == {"passed"} else "unjudged"
    counts = (score or {}) if status == "passed" else {}
    return Outcome(status=status, findings=findings, seconds=round(seconds, 2), score=counts)


def score_text(name: str, value: float | None, *, par: float, best: float | None = None) -> str:
    """Return `bytes sent 24,576 (par 24,576, your best 24,576)`, without what is None."""
    words = [f"par {number_text(par, 10)}", *([] if best is None else [f"your best {number_text(best, 10)}"])]
    return f"{name.replace('_', ' ')}{'' if value is None else f' {number_text(value, 10)}'} ({', '.join(words)})"


def _findings(lesson: Lesson, evidence: Evidence) -> Iterator[Finding]:
    wanted, observed = lesson.required, evidence.observed
    yield _run(lesson, evidence)
    if wanted.steps is not None:
        steps = min((node.steps for node in evidence.report.nodes), default=0)
        yield _counted(
            "steps",
            steps,
            steps >= wanted.steps,
            f"{format_count(steps, 'optimizer step')} on each node; at least {wanted.steps}",
        )
    if wanted.loss_falls is not None:
        yield _loss(wanted.loss_falls, observed)
    if wanted.collectives is not None:
        least = min((_collectives(rank) for rank in observed), default=0)
        yield _counted(
            *("collectives", least, least >= wanted.collectives),
            f"{format_count(least, 'collective')} by each rank; at least {wanted.collectives}",
        )
    if wanted.elements_per_collective is not None:
        largest = max((elements(record) for rank in observed for record in rank.of(Collective)), default=0)
        detail = f"the largest collective moves {largest:,} elements; at most {wanted.elements_per_collective:,}"
        yield _verdict("elements_per_collective", 0 < largest <= wanted.elements_per_collective, detail)
    if wanted.reductions_per_step is not None:
        yield _reductions(wanted.reductions_per_step, observed)
    if wanted.samples_per_epoch is not None:
        yield from _samples(wanted.samples_per_epoch, wanted.orders, observed)
    if wanted.backwards_per_step is not None:
        yield _backwards(wanted.backwards_per_step, observed)
    for name in wanted.checks:
        yield _check(name, evidence, needs=lesson.needs.get(name, ""))
    for name, bound in wanted.metrics.items():
        yield _measured(name, bound, evidence.measured.get(name, ()))
    yield from _expectations(lesson, evidence.report)


def _run(lesson: Lesson, evidence: Evidence) -> Finding:
    report = evidence.report
    diagnosed = "hang" in lesson.required.checks and report.cause is not None and report.cause.kind == "hang"
    if diagnosed:
        return Finding(id="run", status="passed", detail="no rank failed; whether they ended is the next question")
    if not (report.scenario.run_verdict != "passed" if report.scenario else report.run_failed):
        return Finding(id="run", status="passed", detail="the run ended without a failure")
    cause = report.cause
    if report.verdict == "interrupted" or (cause and cause.kind in ("engine", "start")):
        return Finding(id="run", status="unjudged", detail=cause.first_line if cause else "the run was interrupted")
    evidence_lines = (cause.traceback or "").strip("\n").splitlines() if cause else []
    own = _own_frame(evidence_lines, evidence.folder)
    text = [cause.first_line if cause else report.verdict, *own, *evidence_lines[-_SHOWN_LINES:]]
    return Finding(id="run", status="failed", detail="\n".join(dict.fromkeys(text)))


def _own_frame(lines: list[str], folder: str) -> list[str]:
    """Return the innermost frame of a traceback in the student's script, which torch's own frames would push out."""
    mark = f'/{SCRIPT}", line '
    found = [number for number, line in enumerate(lines) if mark in line and 'File "' in line and folder in line]
    return [line.replace(f"{folder}/", "") for line in lines[found[-1] : found[-1] + 2]] if found else []


def _loss(share: float, observed: Observed) -> Finding:
    values = [record.value for rank in observed if rank.rank == 0 for record in rank.of(LossValue)]
    if len(values) < 4:
        return _verdict("loss_falls", False, f"{len(values)} losses on rank 0: too few to fall")
    part = max(1, len(values) // 4)
    first, last = mean(values[:part]), mean(values[-part:])
    good = last <= first - share * abs(first)  # of a NaN, False
    return _verdict(
        "loss_falls", good, f"the loss on rank 0 went from {first:.3g} to {last:.3g}; it must fall by {share:.0%}"
    )


def _reductions(most: float, observed: Observed) -> Finding:
    steps = sum(1 for rank in observed for _ in rank.of(OptimizerStep))
    reductions = sum(1 for rank in observed for _ in rank.of(DdpForward))
    if not steps:
        return _verdict("reductions_per_step", False, "no optimizer stepped")
    if not reductions:
        return _verdict("reductions_per_step", False, "DistributedDataParallel has reduced no gradients")
    seen = reductions / steps
    detail = f"gradients were reduced {seen:.3g} times per optimizer step; at most {most:g}"
    return _verdict("reductions_per_step", seen <= most, detail)


def _samples(size: int, orders: int | None, observed: Observed) -> Iterator[Finding]:
    epochs = samples.epochs_of(observed, size)
    tallies = [samples.tally(epoch, size) for epoch in epochs]
    worst = next((number for number, found in enumerate(tallies) if found != (0, 0)), None)
    if not epochs:
        detail = f"the ranks trained on {format_count(samples.total(observed), 'sample')}: no whole epochs of {size}"
    elif worst is not None:
        several, never = tallies[worst]
        detail = f"in epoch {worst}, {several} of {size} samples were trained on more than once, and {never} never"
    else:
        detail = f"in each of {format_count(len(epochs), 'epoch')}, each of {size} samples was trained on once"
    yield _verdict("samples_per_epoch", bool(epochs) and worst is None, detail)
    if orders is not None:
        same = next(samples.alike(epochs), None)
        if same:
            detail = f"rank {same[2]} had its samples in nearly the same order in epochs {same[0]} and {same[1]}"
        else:
            detail = f"{format_count(len(epochs), 'epoch')}, each in an order of its own; at least {orders}"
        yield _verdict("orders", same is None and len(epochs) >= orders, detail)


def _backwards(wanted: int, observed: Observed) -> Finding:
    seen = sorted({each.backwards for rank in observed for each in rank.of(OptimizerStep) if each.type})
    words = f"{seen[0]} to {seen[-1]}" if len(seen) > 1 else f"{seen[0]}" if seen else "no"
    return _verdict("backwards_per_step", seen == [wanted], f"{words} backward passes before a step; wanted: {wanted}")


def _measured(name: str, bound: MetricBound, reported: Sequence[Reported]) -> Finding:
    """Return the finding for a number by the rank whose number is the worst, which is named if others have another one."""
    if not reported:
        return _verdict(name, False, f"not measured, as the program did not get so far; it must be {bound.text}")
    rank, value = max(reported, key=lambda each: bound.badness(each[1]))
    where = f" on rank {rank}" if len({other for _, other in reported}) > 1 else ""
    return _verdict(name, bound.holds(value), f"{bound.shown(value)}{where}; it must be {bound.text}")


def measured_numbers(logs: Mapping[int, Iterable[str]], token: str) -> dict[str, tuple[Reported, ...]]:
    """Return the numbers that the course's program reported, by name; of a list, each of its numbers."""
    found: dict[str, list[Reported]] = defaultdict(list)
    for rank, lines in sorted(logs.items()):
        for values in _reported(lines, token):
            for name, value in values.items():
                numbers = value if isinstance(value, list) else [value]
                found[name] += ((rank, each) for each in numbers if isinstance(each, int | float))
    return {name: tuple(values) for name, values in found.items() if values}


def measured_shares(logs: Mapping[int, Iterable[str]], token: str) -> Shares | None:
    """Return what the ranks took according to the course's program, by the lines of each rank; None if it reported nothing."""
    found: dict[tuple[str, int], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for rank, lines in sorted(logs.items()):
        for values in _reported(lines, token):
            match values.get("shares"):
                case {"what": str(what), "count": int(count), "items": list(items)} if count <= _MAX_SHARED:
                    taken = tuple(item for item in items if isinstance(item, int) and 0 <= item < count)
                    found[what, count][rank] = taken
    return next((Shares(what=what, count=count, by_rank=taken) for (what, count), taken in found.items()), None)


def _reported(lines: Iterable[str], token: str) -> Iterator[dict[str, Any]]:
    """Yield what the course's program reported: the JSON objects that hold the token of this attempt."""
    for line in lines:
        if token not in line:
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and values.pop("token", None) == token:
            yield values


def _check(name: str, evidence: Evidence, *, needs: str = "") -> Finding:
    """Return what a check found. One that had nothing to judge is not passed: the script lacks what the lesson is about."""
    result = next((each for each in evidence.report.checks if each.id == name), None)
    if result is None:
        return Finding(id=name, status="unjudged", detail="this check was not run")
    if result.status == "not-applicable" and evidence.report.verdict != "interrupted":
        return Finding(id=name, status="failed", detail="\n".join(filter(None, (needs, result.detail))))
    status = _STATUS.get(result.status, "unjudged")
    file = result.place.file.removeprefix(f"{evidence.folder}/") if result.place else ""
    place = f"{file}:{result.place.line}" if result.place else ""
    return Finding(id=name, status=status, detail=result.detail, place=place, fix=result.fix or "")


def _expectations(lesson: Lesson, report: Report) -> Iterator[Finding]:
    for wanted in lesson.required.expect:
        result = next((each for each in report.expectations if each.id == wanted.name), None)
        if result is None:
            yield Finding(id=wanted.name, status="unjudged", detail="this expectation was not judged")
        else:
            status: Status = "unjudged" if result.status == "inconclusive" else result.status
            yield Finding(id=wanted.name, status=status, detail=f"{result.detail}{_limit(wanted.name, result.wanted)}")


def _limit(name: str, wanted: str) -> str:
    """Return what an expectation wants as the end of a sentence; nothing if its name says all."""
    kind = next((word.replace("_", " ") for word in ("at_least", "at_most") if name.endswith(word)), "")
    return "" if wanted == "true" else f"; it must be {kind} {wanted}" if kind else f"; wanted: {wanted}"


def _collectives(rank: RankObserved) -> int:
    later = sum(group.number for record in rank.of(LaterCollectives) for group in record.groups)
    return later + sum(1 for _ in rank.of(Collective)) + sum(1 for _ in rank.of(DdpForward))


def elements(record: Collective) -> int:
    """Return how many elements a collective moves: those of all ranks together for a gather, else those of one."""
    own = sum(prod(shape) for shape in record.shapes)
    return own * len(record.group) if "gather" in record.op else own


def _counted(name: str, seen: int, good: bool, detail: str) -> Finding:
    return _verdict(name, good, detail if seen else f"no {name}: is there still a script?")


def _verdict(name: str, good: bool, detail: str) -> Finding:
    return Finding(id=name, status="passed" if good else "failed", detail=detail)
