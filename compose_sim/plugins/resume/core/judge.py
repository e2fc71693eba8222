"""Judge whether a run that was interrupted and started again is the same run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from compose_sim.core.events.observations import RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.resumption import InterruptedHere, StateMoved
from compose_sim.plugins.resume.core.alignment import Alignment, align
from compose_sim.plugins.resume.core.checkpoints import Checkpoint, find_checkpoints, last_named
from compose_sim.plugins.resume.core.compare import NOT_THE_AVERAGE, compare, compare_loaded, pairs
from compose_sim.plugins.resume.core.endings import RENAME, broken_off, not_resumed, torn_and_read, without_steps
from compose_sim.plugins.resume.core.evidence import Judgement, ThreeRuns
from compose_sim.plugins.resume.core.findings import Missing, MissingState, first_of, ranks_of
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference, make_reference
from compose_sim.plugins.resume.core.reshape import compare_samples, gathered
from compose_sim.plugins.resume.core.trajectory import Run, names_of, read_run

_OF_WORKERS = ("DataLoader worker", "/torch/utils/data/", "/multiprocessing/")  # in a traceback
_MAY_BE_HASHES = ("random", "sampler-epoch", "unknown")
_OTHER_HASHES = (
    "Python's hashes had another seed than before, as in each new process: sets of strings have another order"
)
_NOTHING_REPEATED = (
    "a round began with parameters that no step of the round before began with, so it repeated nothing: "
    "let the fault come a few steps after a checkpoint"
)
_NUMBER = re.compile(r"\d+")


def judge(evidence: ThreeRuns) -> Judgement:
    """Compare the continuation with the whole run."""
    runs = [read_run(each) for each in (evidence.whole, evidence.interrupted, evidence.resumed)]
    is_reshaped = len(runs[2]) not in (0, len(runs[1]))
    if is_reshaped:
        runs = [gathered(each) for each in runs]
    reference, resumed = make_reference(runs[0], runs[1]), runs[2]
    checkpoints = find_checkpoints(evidence.interrupted, {}, least=1 << 62)
    is_over = not (evidence.ending.is_failure or evidence.is_one_run)
    moves = Moves(interrupted=evidence.interrupted, resumed=evidence.resumed, checkpoint=None, is_over=is_over)
    if not any(each.states for each in resumed.values()):
        return without_steps(evidence, moves, reference)
    read = {*moves.loaded_paths()}
    newest_first = sorted(checkpoints, key=lambda each: (not read & {*each.files}, -each.step))
    likely = [each.step for each in newest_first]
    found = align(reference, resumed, likely=likely)
    if evidence.is_one_run and (found is None or not found.exact):
        return Judgement(status="inconclusive", text=_NOTHING_REPEATED)
    may_begin = 0 in likely[:1] or (evidence.is_one_run and moves.has_begun_from_a_file)
    if found is None or (found.step == 0 and not may_begin):
        return not_resumed(evidence, moves, found, reference, resumed)
    checkpoint = next((each for each in reversed(checkpoints) if each.step == found.step), None)
    moves = replace(moves, checkpoint=checkpoint or evidence.interruption.checkpoint)
    findings = _of_loading(evidence, found, checkpoints, moves, reference, resumed)
    change = ""
    if is_reshaped:
        others, change = compare_samples(reference, resumed, found.step, moves)
        findings += [*compare_loaded(reference, resumed, found.step, moves), *others]
    else:
        findings += compare(reference, resumed, found.step, moves)
    findings += _of_termination(evidence)
    made = max(len(each.states) for each in resumed.values())
    if evidence.ending.is_failure:
        findings.append(broken_off(evidence, moves, found.step + made + 1))
    missing = tuple(_concluded(first_of(findings), moves))
    if missing:
        text = _failure(missing, found, moves)
        if evidence.has_other_hashes and missing[0].missing in _MAY_BE_HASHES:
            text += f". {_OTHER_HASHES}"
        return Judgement(status="failed", text=text, findings=missing)
    if is_reshaped:
        return _reshaped(evidence, found, moves, change)
    return _without_findings(reference, found, moves, len([*pairs(reference, resumed, found.step)]))


def _concluded(findings: list[MissingState], moves: Moves) -> list[MissingState]:
    """Leave out what is a consequence of another finding."""
    kinds = {each.missing for each in findings}
    if "optimizer" in kinds and moves.loads("scheduler"):  # the optimizer's state holds the learning rate
        findings = [each for each in findings if each.missing != "scheduler"]
    if "scaler" in kinds:  # another scale skips other steps, whose micro-batches are then those of the next one
        findings = [each for each in findings if each.missing != "accumulation"]
    if "off-by-one" in kinds:
        findings = [each for each in findings if each.missing != "scheduler" or each.step < findings[0].step]
    if "older-checkpoint" in kinds:  # other files may be those of the newest one
        findings = [each for each in findings if each.missing == "older-checkpoint"]
    if kinds & {"shards", "parameters"}:
        findings = [each for each in findings if each.missing in ("shards", "parameters")]
    return findings


def _of_loading(
    evidence: ThreeRuns,
    found: Alignment,
    checkpoints: Sequence[Checkpoint],
    moves: Moves,
    reference: Reference,
    resumed: Run,
) -> list[MissingState]:
    """Return what is wrong with the parameters that the resumed run begins with, and with the choice of the checkpoint."""
    step, at = found.step + 1, moves.loaded_at
    findings: list[MissingState] = []
    named = last_named(evidence.interrupted, checkpoints, (each.path for each in moves.read_files()))
    last = reference.interrupted_at if named is None else named
    newest = 0 if evidence.torn else _newest(checkpoints, found.step, last)
    if found.step < newest:
        stamps = "; the files had other time stamps, as after copying" if evidence.copied else ""
        text = f"it went on after step {found.step}, although the checkpoint of step {newest} was complete{stamps}"
        fix = (
            "Choose the checkpoint by the number of its step, not by time stamp or alphabet, or keep its name in a file"
        )
        findings.append(MissingState(missing="older-checkpoint", step=step, text=text, fix=fix, at=at))
    if not found.exact:
        text = f"parameters are those of step {found.step} only roughly: {names_of([name for _, name in found.others])}"
        fix = "Save parameters with all their digits, and load the weights that train, not their average"
        findings.append(
            MissingState(missing="precision", step=step, text=text, fix=fix, at=moves.place_for("precision"))
        )
    elif not found.others and (other := _step_of_the_rest(reference, resumed, found.step)) is not None:
        text = f"the parameters are those of step {found.step}, and the optimizer's state is that of step {other}"
        fix = "Load parameters and optimizer state of the same step: choose each file by the number of its step"
        which: Missing = "older-checkpoint" if found.step < other else "parameters"
        findings.append(MissingState(missing=which, step=step, text=text, fix=fix, at=at))
    elif found.others:
        finding, torn = _of_parameters(found, moves, reference), torn_and_read(evidence, moves)
        findings.append(replace(finding, text=finding.text + torn, fix=RENAME) if torn else finding)
    return findings


def _step_of_the_rest(reference: Reference, resumed: Run, step: int) -> int | None:
    """
    Return the step whose optimizer state all resumed ranks begin with, if that is another one than the step of the parameters.

    An earlier one must also be the one whose samples come next: else it is the optimizer's state that is wrong.
    """
    firsts = {rank: each.states[0] for rank, each in resumed.items() if each.states}

    def is_of(other: int) -> bool:
        both = ((reference.at(rank, other), found) for rank, found in firsts.items())
        return all(
            was is not None
            and was.of("optimizer state") == found.of("optimizer state") != {}
            and (other >= step or was.samples == found.samples)
            for was, found in both
        )

    steps = range(reference.interrupted_at, -1, -1)
    return None if is_of(step) else next((each for each in steps if is_of(each)), None)


def _newest(checkpoints: Sequence[Checkpoint], step: int, last: int) -> int:
    """Return the step of the newest complete checkpoint that has the same kinds of files as that of `step`; 0 without one."""
    chosen = next((each for each in checkpoints if each.step == step), None)
    if chosen is None:
        return 0
    kinds = _kinds(chosen)
    alike = [
        each.step for each in checkpoints if each.step <= last and kinds <= _kinds(each) and each.ranks == chosen.ranks
    ]
    return max(alike, default=0)


def _kinds(checkpoint: Checkpoint) -> set[str]:
    return {_NUMBER.sub("#", path) for path in checkpoint.files}


def _of_parameters(found: Alignment, moves: Moves, reference: Reference) -> MissingState:
    ranks = tuple(sorted({rank for rank, _ in found.others}))
    names = sorted({name for _, name in found.others})
    first = reference.at(ranks[0], found.step)
    sharded = first is not None and any(name in first.sharded for name in names)
    of_no_step = "they are averages of the weights" if found.averaged else "they are those of no step"
    were = "they are those of the start" if found.initial else of_no_step
    held = len(first.of("parameter")) if first is not None else 0
    text = f"{len(names)} of {held} parameters are not restored on {ranks_of(ranks)}: {names_of(names)}; {were}"
    at = moves.saved_at or moves.loaded_at
    if sharded and len(ranks) < len(reference.ranks):
        fix = "Let every rank save its shards (torch.distributed.checkpoint), or gather the full state before one rank saves it"
        return MissingState(missing="shards", step=found.step + 1, text=text, fix=fix, ranks=ranks, at=at)
    fix = (
        NOT_THE_AVERAGE if found.averaged else "Save and load all parameters, on every rank, into the model that trains"
    )
    return MissingState(missing="parameters", step=found.step + 1, text=text, fix=fix, ranks=ranks, at=moves.loaded_at)


def _of_termination(evidence: ThreeRuns) -> list[MissingState]:
    """Return that a handler of SIGTERM did not get to save a checkpoint, because workers of the loader had been killed."""
    cause = evidence.cut.cause
    notices = [each for each in evidence.interrupted.of(InterruptedHere) if each.handled and each.workers]
    is_of_workers = cause is not None and any(words in cause.text for words in _OF_WORKERS)
    if not notices or cause is None or not is_of_workers or any(map(_saves_after, evidence.interrupted)):
        return []
    first = notices[0]
    text = f"the script handles SIGTERM, but saved nothing: its {first.workers} loader workers got the signal too: {cause.first_line}"
    fix = "Ignore SIGTERM in the workers: worker_init_fn=lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    return [MissingState(missing="emergency-checkpoint", step=first.step + 1, text=text, fix=fix, at=first.at)]


def _saves_after(rank: RankObserved) -> bool:
    """Return whether a rank saved state, or wrote any file, after it had been interrupted."""
    notice = rank.first(InterruptedHere)
    after = rank.records[notice.index + 1 :] if notice is not None else ()
    saved = any(isinstance(each, StateMoved) and not each.loaded for each in after)
    return saved or any(isinstance(each, FileUse) and each.op in ("write", "update", "rename") for each in after)


def _failure(missing: Sequence[MissingState], found: Alignment, moves: Moves) -> str:
    shown = [
        f"{each.missing}: step {each.step}: {f'{ranks_of(each.ranks)}: ' if each.ranks else ''}{each.text}"
        for each in missing
    ]
    is_off = any(each.missing == "off-by-one" for each in missing)
    return f"{'; also '.join(shown)}. {_went_on(found, moves, is_off=is_off)}; what differs later is a consequence"


def _went_on(found: Alignment, moves: Moves, *, is_off: bool = False) -> str:
    files = moves.names
    named = {int(each) for path in moves.own_names for each in _NUMBER.findall(path)} if is_off else set()
    wrong = next((each for each in sorted(named) if abs(each - found.step) == 1), None)
    holds = f": the checkpoint named {wrong} holds step {found.step}" if wrong is not None else ""
    return f"It went on after step {found.step}" + (f" from {files}" if files else "") + holds


def _reshaped(evidence: ThreeRuns, found: Alignment, moves: Moves, change: str) -> Judgement:
    ranks = f"{format_count(evidence.resumed.world_size, 'rank')} instead of {evidence.interrupted.world_size}"
    text = f"{_went_on(found, moves)} with {ranks}: they hold the same parameters and the same state together"
    return Judgement(status="passed", text=text + (f"; {change}" if change else ""))


def _without_findings(reference: Reference, found: Alignment, moves: Moves, compared: int) -> Judgement:
    if reference.why_not:
        text = f"two runs from the start differ in {reference.why_not}, so that only loaded state was compared: set all seeds"
        return Judgement(status="inconclusive", text=text)
    if not compared:
        return Judgement(status="inconclusive", text="the resumed run made no step that the whole run made")
    steps = compared // max(1, len(reference.ranks))
    noise = f" (differences up to {reference.noise:.0e} are the script's own)" if reference.noise else ""
    text = f"{_went_on(found, moves)}, and made the same {steps} steps on {len(reference.ranks)} ranks as without the interruption"
    return Judgement(status="passed", text=text + noise)
