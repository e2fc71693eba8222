"""List all checks, run them on a case, and name what they could not judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, WARNED, Case, Result, ScriptCheck, not_applicable
from compose_sim.core.checks.rules import (
    checkpoints,
    collectives,
    copies,
    gradients,
    loaders,
    machines,
    metrics,
    progress,
    replays,
    replicas,
    samples,
    scaling,
    wrapping,
)
from compose_sim.core.checks.sketches import parameter_names
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, CheckResult, Coverage
from compose_sim.core.request.names import CHECK_GROUP, chosen
from compose_sim.errors import OutOfTimeError, SpecError
from compose_sim.node.records.process_groups import InitProcessGroup, ProcessGroup
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import FeatureOff
from compose_sim.plugins.registry import find


def why_not_judged(observed: Observed, looked_at: Collection[type[Record]]) -> str:
    """Return why a check that looked at these kinds of records has seen too little; "" if all of them were recorded."""
    for each in observed.of(FeatureOff):
        if any(each.feature in (kind.kind, *kind.observers) for kind in looked_at):
            return f"not judged: {each.why}"
    return ""


BROKEN = "this check itself is broken"
# Causes are listed before their consequences.
CHECKS: tuple[ScriptCheck, ...] = (
    progress.hang,
    collectives.collective_mismatch,
    machines.rank_confusion,
    machines.host_dependence,
    wrapping.wrapper_bypassed,
    wrapping.params_after_wrap,
    wrapping.unused_params,
    progress.uneven_inputs,
    replicas.params_in_sync,
    gradients.gradient_mean,
    scaling.gradient_clipping,
    scaling.loss_scale,
    replays.matches_single,
    copies.replicated_tensors,
    samples.sampler_overlap,
    loaders.set_epoch,
    loaders.sampler_tail,
    checkpoints.checkpoint_race,
    checkpoints.checkpoint_load,
    wrapping.batchnorm_local,
    loaders.same_randomness,
    metrics.metric_local,
    machines.nondeterminism,
    machines.wasted_time,
    progress.teardown,
)
BY_ID: Mapping[str, ScriptCheck] = {each.id: each for each in CHECKS}
# A warning of matches-single says that each rank's gradient is right for the parameters that all of them have.
_NO_CAUSE_OF_A_WARNING: Mapping[str, tuple[str, ...]] = {"matches-single": ("params-in-sync",)}
# The checks that compare each of them; the first one gives the reason if none of them could.
_COMPARED_BY: Mapping[str, tuple[str, ...]] = {
    "replicas": ("params-in-sync",),
    "gradients": ("gradient-mean", "matches-single", "loss-scale"),
    "samples": ("sampler-overlap",),
}
_NUMBERED = re.compile(r"\b\d+ of group \d+\b")


def find_check(name: str) -> ScriptCheck:
    """Return the check of this id; raise SpecError if that of another distribution cannot be loaded, or is none."""
    feature = None if name in BY_ID else find(CHECK_GROUP, name)
    check = feature.load() if feature else BY_ID[name]
    if not isinstance(check, ScriptCheck):
        raise SpecError(f"'{name}' is not a ScriptCheck")
    return replace(check, id=name)


def run_checks(case: Case, *, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> tuple[Result, ...]:
    """Return the results of the chosen checks, in the order of `check_ids`; a problem that follows from a failure names it."""
    results = confirmed([_judge(name, case) for name in chosen(only, skip)])
    failures = {result.id for result in results if result.status == FAILED}
    names = parameter_names(case.observed)

    def with_names(text: str) -> str:
        return _NUMBERED.sub(lambda found: names.get(found[0], found[0]), text)

    def concluded(result: Result) -> Result:
        cause = first_cause(result.id, failures, is_warning=result.status == WARNED) if result.is_problem else ""
        fix = with_names(result.fix) if result.fix else None
        return replace(result, detail=with_names(result.detail), fix=fix, follows=cause or None)

    return tuple(map(concluded, results))


def confirmed(results: list[Result]) -> list[Result]:
    """Fail a warning of gradient-mean if loss-scale failed at the same line: gradient-mean names the cause."""
    scale = next((result for result in results if result.id == "loss-scale" and result.status == FAILED), None)
    return [
        replace(result, status=FAILED)
        if scale and result.id == "gradient-mean" and result.status == WARNED and result.place == scale.place
        else result
        for result in results
    ]


def cause_of_crash(cause: Cause | None, checks: Sequence[CheckResult]) -> Cause | None:
    """Return the cause of a run with what a check has found, if a rank was ended by a signal: it could not say why itself."""
    found = next((each.detail for each in checks if each.id == "collective-mismatch" and each.status == FAILED), "")
    if cause is None or cause.kind != "signal" or not found:
        return cause
    return replace(cause, message=found, traceback=cause.text.rstrip())


def first_cause(name: str, failures: Collection[str], *, is_warning: bool = False) -> str:
    """Return the failed check from which a problem of this check follows, directly or through others; "" if there is none."""
    excluded = _NO_CAUSE_OF_A_WARNING.get(name, ()) if is_warning else ()
    causes = BY_ID[name].may_follow if name in BY_ID else ()
    cause = next((each for each in causes if each in failures and each not in excluded), "")
    return (first_cause(cause, failures) or cause) if cause else ""


def why_no_check(launcher: str) -> str:
    """Return why the checks, except the one for hangs, cannot judge what a launcher starts; "" if they can."""
    judges = "checks judge scripts that use torch.distributed"
    return f"{judges}; this one ran under paddle.distributed.launch" if launcher == "paddle" else ""


def coverage(results: Iterable[Result], *, only: tuple[str, ...] = ()) -> Coverage:
    """Return why replicas, gradients and samples were not judged; with `--only`, as far as that was asked for."""
    by_id = {result.id: result for result in results}
    return Coverage(**{subject: _why_uncovered(ids, by_id, only) for subject, ids in _COMPARED_BY.items()})


def why_inconclusive(
    case: Case, results: Sequence[Result], found: Coverage, *, only: tuple[str, ...], is_strict: bool
) -> str:
    """Return why nothing may be concluded although nothing failed; "" if something may."""
    if not (case.observed.first(InitProcessGroup) or case.observed.first(ProcessGroup)):
        return "nothing distributed was seen: no rank called torch.distributed.init_process_group"
    for result in results:
        if result.status == NOT_APPLICABLE and (result.id in only or result.detail == str(OutOfTimeError())):
            return f"{result.id} is not applicable: {result.detail}"
    return found.text if is_strict else ""


def _judge(name: str, case: Case) -> Result:
    if case.why_not and name != "hang":
        return replace(not_applicable(case.why_not), id=name)
    if case.observed.first(FeatureOff) or (case.single and case.single.first(FeatureOff)):
        return _judge_as_far_as_recorded(name, case)
    return _judge_or_break(name, case)


def _judge_as_far_as_recorded(name: str, case: Case) -> Result:
    """Judge, unless the check looks at records that part of the ranks' observers did not write."""
    seen = case.observed.watched()
    single = case.single.watched() if case.single else None
    result = _judge_or_break(name, replace(case, observed=seen, single=single))
    looked_at = (seen.looked_at or set()) | ((single.looked_at if single else None) or set())
    why = next((why for each in (case.observed, case.single) if each and (why := why_not_judged(each, looked_at))), "")
    return replace(not_applicable(why), id=name) if why else result


def _judge_or_break(name: str, case: Case) -> Result:
    try:
        return find_check(name).judge(case)
    except OutOfTimeError as error:
        return replace(not_applicable(str(error)), id=name)
    except Exception as error:  # noqa: BLE001 - an error in one check must not cost the user the report
        problem = f"{BROKEN} ({type(error).__name__}: {error}): please report it"
        return replace(not_applicable(problem), id=name)


def _why_uncovered(ids: tuple[str, ...], by_id: Mapping[str, Result], only: tuple[str, ...]) -> str | None:
    if only and not set(ids) & set(only):
        return None
    found = [by_id[name] for name in ids if name in by_id]
    elsewhere = [by_id[result.judged_by] for result in found if result.judged_by in by_id]
    judged = [result for result in (*found, *elsewhere) if result.status != NOT_APPLICABLE]
    if judged:
        return None if not all(result.unjudged for result in judged) else judged[0].unjudged
    return found[0].detail if found else f"{', '.join(ids)} did not run"
