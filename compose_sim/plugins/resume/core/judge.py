"""Judge whether a run that was interrupted and started again is the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, CheckResult
from compose_sim.core.report.report import Place as ReportPlace
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.record import Place
from compose_sim.node.records.resumption import InterruptedHere, StateMoved
from compose_sim.plugins.resume.core.alignment import Alignment, align
from compose_sim.plugins.resume.core.checkpoints import Checkpoint, Interruption, find_checkpoints
from compose_sim.plugins.resume.core.compare import compare, pairs
from compose_sim.plugins.resume.core.findings import WORDS, Finding, first_of, ranks_of
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference, make_reference
from compose_sim.plugins.resume.core.trajectory import names_of, read_run

ID = "resume"
Status = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended."""

    verdict: str
    cause: Cause | None = None

    @property
    def text(self) -> str:
        """The cause on one line."""
        return self.cause.first_line if self.cause else self.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The three runs of `check --resume`."""

    whole: Observed
    interrupted: Observed
    resumed: Observed
    interruption: Interruption
    ending: Ending  # of the resumed run
    script: str = "the script"
    switch: str = ""  # an option of the script that seems to resume, and was not given
    torn: str = ""  # the file that was being written when the run was killed
    copied: bool = False  # whether files were given other time stamps in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict, and all that is missing: first what shows first."""

    status: Status
    text: str
    findings: tuple[Finding, ...] = ()

    def to_check(self) -> CheckResult:
        """Return the judgement as a report holds it; an inconclusive one is not applicable."""
        if not self.findings:
            status: Literal["passed", "not-applicable"] = "passed" if self.status == "passed" else "not-applicable"
            return CheckResult(id=ID, status=status, detail=self.text)
        first, *others = self.findings
        fixes = [first.fix, *(f"{WORDS[each.missing]}: {each.fix}{_where(each.at)}" for each in others if each.fix != first.fix)]
        return CheckResult(
            id=ID,
            status="failed",
            detail=self.text,
            fix=". ".join(fixes),
            place=ReportPlace(file=first.at[0], line=first.at[1]) if first.at else None,
            ranks=first.ranks,
        )


def judge(evidence: Evidence) -> Judgement:
    """Compare the continuation with the whole run."""
    reference = make_reference(read_run(evidence.whole), read_run(evidence.interrupted))
    resumed = read_run(evidence.resumed)
    checkpoints = find_checkpoints(evidence.interrupted, {}, least=1 << 62)
    moves = Moves(interrupted=evidence.interrupted, resumed=evidence.resumed, checkpoint=None)
    if not any(each.states for each in resumed.values()):
        return _without_steps(evidence, moves, reference)
    likely = [each.step for each in reversed(checkpoints)]
    found = align(reference, resumed, likely=likely)
    if found is None or (found.step == 0 and 0 not in likely[:1]):
        return _not_resumed(evidence, moves, found, reference)
    checkpoint = next((each for each in reversed(checkpoints) if each.step == found.step), None)
    moves = replace(moves, checkpoint=checkpoint or evidence.interruption.checkpoint)
    findings = [*_of_loading(evidence, found, checkpoints, moves, reference), *compare(reference, resumed, found.step, moves)]
    findings += _of_termination(evidence)
    missing = tuple(_concluded(first_of(findings)))
    if missing:
        return Judgement(status="failed", text=_failure(missing, found, moves), findings=missing)
    return _without_findings(evidence, reference, found, moves, len([*pairs(reference, resumed, found.step)]))


def _concluded(findings: list[Finding]) -> list[Finding]:
    """Leave out what is a consequence of another finding."""
    kinds = {each.missing for each in findings}
    if "off-by-one" in kinds:
        findings = [each for each in findings if each.missing != "scheduler" or each.step < findings[0].step]
    if kinds & {"shards", "parameters"}:
        findings = [each for each in findings if each.missing in ("shards", "parameters")]
    return findings


def _of_loading(
    evidence: Evidence, found: Alignment, checkpoints: Sequence[Checkpoint], moves: Moves, reference: Reference
) -> list[Finding]:
    """Return what is wrong with the parameters that the resumed run begins with, and with the choice of the checkpoint."""
    step, at = found.step + 1, moves.loaded_at
    findings: list[Finding] = []
    newest = max((each.step for each in checkpoints if each.step <= reference.interrupted_at), default=0)
    if found.step < newest and _is_complete(checkpoints, newest):
        stamps = "; the files had other time stamps, as after copying" if evidence.copied else ""
        text = f"it went on after step {found.step}, although the checkpoint of step {newest} was complete{stamps}"
        fix = "Choose the checkpoint by the number of its step, not by time stamp or alphabet, or keep its name in a file"
        findings.append(Finding(missing="older-checkpoint", step=step, text=text, fix=fix, at=at))
    if not found.exact:
        text = f"parameters are those of step {found.step} only roughly: {names_of([name for _, name in found.others])}"
        fix = "Save parameters with all their digits, and load the weights that train, not their average"
        findings.append(Finding(missing="precision", step=step, text=text, fix=fix, at=moves.place_for("precision")))
    elif found.others:
        findings.append(_of_parameters(found, moves, reference))
    return findings


def _is_complete(checkpoints: Sequence[Checkpoint], step: int) -> bool:
    newest = next((each for each in checkpoints if each.step == step), None)
    usual = max((len(each.ranks) for each in checkpoints), default=0)
    return newest is not None and len(newest.ranks) == usual


def _of_parameters(found: Alignment, moves: Moves, reference: Reference) -> Finding:
    ranks = tuple(sorted({rank for rank, _ in found.others}))
    names = sorted({name for _, name in found.others})
    first = reference.at(ranks[0], found.step)
    sharded = first is not None and any(name in first.sharded for name in names)
    were = "they are those of the start" if found.initial else "they are those of no step"
    held = len(first.of("parameter")) if first is not None else 0
    text = f"{len(names)} of {held} parameters are not restored on {ranks_of(ranks)}: {names_of(names)}; {were}"
    at = moves.saved_at or moves.loaded_at
    if sharded and len(ranks) < len(reference.ranks):
        fix = "Let every rank save its shards (torch.distributed.checkpoint), or gather the full state before one rank saves it"
        return Finding(missing="shards", step=found.step + 1, text=text, fix=fix, ranks=ranks, at=at)
    fix = "Save and load all parameters, on every rank, into the model that trains"
    return Finding(missing="parameters", step=found.step + 1, text=text, fix=fix, ranks=ranks, at=moves.loaded_at)


def _of_termination(evidence: Evidence) -> list[Finding]:
    """Return that a handler of SIGTERM did not get to save a checkpoint, because workers of the loader had been killed."""
    for rank in evidence.interrupted:
        notice = rank.first(InterruptedHere)
        if notice is None or not notice.handled or not notice.workers:
            continue
        after = [each for each in rank.records if each.index > notice.index]
        saved = any(isinstance(each, StateMoved) and not each.loaded for each in after)
        saved = saved or any(isinstance(each, FileUse) and each.op != "read" for each in after)
        others = [each for each in evidence.interrupted if _saves_after(each)]
        if not saved and not others:
            text = f"the script handles SIGTERM, but saved nothing: its {notice.workers} loader workers got the signal first"
            fix = "Ignore SIGTERM in the workers: worker_init_fn=lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN)"
            return [
                Finding(missing="emergency-checkpoint", step=notice.step + 1, text=text, fix=fix, ranks=(rank.rank,), at=notice.at)
            ]
    return []


def _saves_after(rank: Observed | object) -> bool:
    records = getattr(rank, "records", ())
    index = next((number for number, each in enumerate(records) if isinstance(each, InterruptedHere)), len(records))
    return any(isinstance(each, StateMoved) and not each.loaded for each in records[index:])


def _failure(missing: Sequence[Finding], found: Alignment, moves: Moves) -> str:
    first, *others = missing
    who = f"{ranks_of(first.ranks)}: " if first.ranks else ""
    text = f"step {first.step}: {who}{first.text} (missing: {WORDS[first.missing]})"
    for each in others:
        text += f"; also missing: {WORDS[each.missing]} (step {each.step}: {each.text})"
    return f"{text}. {_went_on(found, moves)}; what differs later is a consequence"


def _went_on(found: Alignment, moves: Moves) -> str:
    files = _files(moves)
    return f"It went on after step {found.step}" + (f" from {files}" if files else "")


def _files(moves: Moves) -> str:
    paths = [each.path for each in moves.resumed.of(StateMoved) if each.kind_of_state == "file" and each.loaded and each.path]
    paths += [each.path for each in moves.read_files()]
    names = [*dict.fromkeys(path.rpartition("/")[2] for path in paths)]
    return ", ".join(names[:2]) + (" …" if len(names) > 2 else "")


def _without_findings(evidence: Evidence, reference: Reference, found: Alignment, moves: Moves, compared: int) -> Judgement:
    if reference.why_not:
        text = f"two runs from the start differ in {reference.why_not}, so that only loaded state was compared: set all seeds"
        return Judgement(status="inconclusive", text=text)
    if not compared:
        return Judgement(status="inconclusive", text="the resumed run made no step that the whole run made")
    steps = compared // max(1, len(reference.ranks))
    noise = f" (differences up to {reference.noise:.0e} are the script's own)" if reference.noise else ""
    text = f"{_went_on(found, moves)}, and made the same {steps} steps on {len(reference.ranks)} ranks as without the interruption"
    return Judgement(status="passed", text=text + noise)


def _without_steps(evidence: Evidence, moves: Moves, reference: Reference) -> Judgement:
    """Judge a second start that ended before the first step."""
    cause = evidence.ending.cause
    if evidence.ending.verdict == "passed":
        text = f"the second start made no step: it took the training, interrupted after step {reference.interrupted_at}, to be over"
        fix = "Go on with the step after the one that was saved"
    else:
        torn = f" (the run was killed while it wrote {evidence.torn})" if evidence.torn else ""
        text = f"the second start {evidence.ending.verdict}: {evidence.ending.text}{torn}"
        fix = "Write a checkpoint under another name, and rename it when it is complete" if evidence.torn else "Make it start again"
    at = moves.loaded_at
    if cause is not None and (place := _last_line(cause)):
        at = place
    finding = Finding(missing="restart-failed", step=reference.interrupted_at + 1, text=text, fix=fix, at=at)
    return Judgement(status="failed", text=text, findings=(finding,))


def _last_line(cause: Cause) -> Place | None:
    return None if not cause.traceback else None


def _not_resumed(evidence: Evidence, moves: Moves, found: Alignment | None, reference: Reference) -> Judgement:
    read = _files(moves)
    if found is None:
        text = f"the second start begins with parameters of no step" + (f", although it read {read}" if read else "")
        fix = "Load the parameters of the checkpoint into the model that trains"
    elif read:
        text = f"it read {read}, but started at step 0: with the parameters of the start"
        fix = "Load the checkpoint into the model that trains, after that has been made"
    else:
        why = evidence.interruption.why_not
        saved = why or f"the first run had saved {_saved(evidence.interruption)}"
        text = f"it does not resume: it started at step 0 and read no file that the first run wrote ({saved})"
        again = f"composesim check --resume --resume-args='{evidence.switch} …' {evidence.script}"
        fix = f"If it needs an option to resume: {again}" if evidence.switch else "Load the newest checkpoint when the script starts"
        if why and not evidence.switch:
            fix = "Save checkpoints more often, or train longer: composesim check --resume SCRIPT --checkpoint-every 5"
    status: Status = "failed" if read or found is None or not evidence.interruption.why_not else "inconclusive"
    if status == "inconclusive":
        return Judgement(status=status, text=f"{text}. {fix}")
    finding = Finding(missing="not-resumed", step=1, text=text, fix=fix, at=moves.loaded_at)
    return Judgement(status=status, text=text, findings=(finding,))


def _saved(interruption: Interruption) -> str:
    names = [each.rpartition("/")[2] for each in interruption.checkpoint.files] if interruption.checkpoint else []
    step = interruption.checkpoint.step if interruption.checkpoint else 0
    return f"{', '.join(names[:2])} after step {step}" if names else "nothing"


def _where(at: Place | None) -> str:
    return f" ({at[0].rpartition('/')[2]}, line {at[1]})" if at else ""
