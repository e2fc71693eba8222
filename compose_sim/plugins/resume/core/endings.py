"""Judge a second start that made no step, did not resume, or failed."""

from __future__ import annotations

import re

from compose_sim.plugins.resume.core.alignment import Alignment
from compose_sim.plugins.resume.core.checkpoints import Interruption
from compose_sim.plugins.resume.core.evidence import Judgement, ThreeRuns
from compose_sim.plugins.resume.core.findings import MissingState
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference
from compose_sim.plugins.resume.core.script_options import command_with
from compose_sim.plugins.resume.core.trajectory import Run

_OF_NO_MODEL = re.compile(r"\d+ of group \d+")  # what node/holdings.py calls such a tensor of an optimizer
RENAME = "Write a checkpoint under another name, and rename it when it is complete"


def without_steps(evidence: ThreeRuns, moves: Moves, reference: Reference) -> Judgement:
    """Judge a second start that ended before the first step."""
    if evidence.ending.verdict == "passed":
        text = f"the second start made no step: it took the training, interrupted after step {reference.interrupted_at}, to be over"
        fix = "Go on with the step after the one that was saved"
    else:
        torn = f" (the run was killed while it wrote {evidence.torn})" if evidence.torn else ""
        text = f"the second start {evidence.ending.verdict}: {evidence.ending.text}{torn}"
        fix = RENAME if evidence.torn else "Make it start again"
    at = evidence.ending.raised_at or moves.loaded_at
    return _failed(MissingState(missing="restart-failed", step=reference.interrupted_at + 1, text=text, fix=fix, at=at))


def broken_off(evidence: ThreeRuns, moves: Moves, step: int) -> MissingState:
    """Return the finding about a second start that failed after some steps."""
    text = f"the second start {evidence.ending.verdict} here: {evidence.ending.text}"
    at = evidence.ending.raised_at or moves.loaded_at
    return MissingState(missing="restart-failed", step=step, text=text, fix="Make it run to the end", at=at)


def not_resumed(
    evidence: ThreeRuns, moves: Moves, found: Alignment | None, reference: Reference, resumed: Run
) -> Judgement:
    """Judge a second start that did not begin with the parameters of a checkpoint."""
    read = moves.names
    if found is None and (replaced := _replaced(reference, resumed)):
        text = f"none of the optimizer's {replaced} tensors is in a model any more: those that replaced them stay untrained"
        fix = "Make the optimizer after the model is loaded, or load without assign=True"
        load = moves.first_load("module")
        at = load.at if load is not None and load.at else moves.loaded_at
        return _failed(MissingState(missing="optimizer", step=1, text=text, fix=fix, at=at))
    if found is None:
        text = "the second start begins with parameters of no step" + (f", although it read {read}" if read else "")
        fix = "Load the parameters of the checkpoint into the model that trains"
    elif torn := torn_and_read(evidence, moves):
        text, fix = f"it started at step 0{torn}", RENAME
    elif read:
        text = f"it read {read}, but started at step 0: with the parameters of the start"
        fix = "Load the checkpoint into the model that trains, after that has been made"
    else:
        return _without_a_sign(evidence)
    return _failed(MissingState(missing="not-resumed", step=1, text=text, fix=fix, at=moves.loaded_at))


def _replaced(reference: Reference, resumed: Run) -> int:
    """Return how many tensors the optimizer of each resumed rank begins with, if all of them are no parameters of a model any more."""
    firsts = {rank: each.states[0].of("parameter") for rank, each in resumed.items() if each.states}
    before = {rank: state.of("parameter") for rank in firsts if (state := reference.at(rank, 0)) is not None}
    are_lost = all(_OF_NO_MODEL.fullmatch(name) for each in firsts.values() for _, name in each)
    had_names = all(not _OF_NO_MODEL.fullmatch(name) for each in before.values() for _, name in each)
    return min(map(len, firsts.values()), default=0) if are_lost and had_names and before else 0


def torn_and_read(evidence: ThreeRuns, moves: Moves) -> str:
    """Return a remark if the second start read the file that was being written when the run was killed."""
    is_read = evidence.torn and any(path.rpartition("/")[2] == evidence.torn for path in moves.loaded_paths())
    return f" (it read {evidence.torn}, which was half written when the run was killed)" if is_read else ""


def _without_a_sign(evidence: ThreeRuns) -> Judgement:
    """Judge a second start that read no file of the first one."""
    if evidence.is_torn_first:
        text = (
            f"the run was killed while it wrote its first checkpoint, {evidence.torn}, so there was none to go on from"
        )
        return Judgement(status="inconclusive", text=text)
    why = evidence.interruption.why_not
    saved = why or f"the first run had saved {_saved(evidence.interruption)}"
    text = f"it does not resume: it started at step 0 and read no file that the first run wrote ({saved})"
    if evidence.is_one_run:
        text = "it does not resume: it started at step 0 and read no file that the round before wrote"
    if why:
        text += f". {_save_earlier(evidence)}"
        return Judgement(status="inconclusive", text=text)
    fix = "Load the newest checkpoint when the script starts"
    if evidence.switch:
        again = command_with(evidence.typed, ("--resume-args", f"{evidence.switch} …"))
        fix = f"If it needs an option to resume: {again}"
    return _failed(MissingState(missing="not-resumed", step=1, text=text, fix=fix, at=evidence.interruption.at))


def _save_earlier(evidence: ThreeRuns) -> str:
    option, fewer = evidence.interval, max(1, evidence.interruption.step * 2 // 3)
    if option is None or not option.value.isdecimal():
        return "Let it save a checkpoint in the middle of the run, or train longer"
    if int(option.value) <= fewer:  # it counts something else than steps
        return f"Let it train longer: {option.name} is {option.value}"
    return f"{option.name} is {option.value}. Try: {command_with(evidence.typed, arguments=(option.name, str(fewer)))}"


def _failed(finding: MissingState) -> Judgement:
    return Judgement(status="failed", text=f"{finding.missing}: {finding.text}", findings=(finding,))


def _saved(interruption: Interruption) -> str:
    names = [each.rpartition("/")[2] for each in interruption.checkpoint.files] if interruption.checkpoint else []
    step = interruption.checkpoint.step if interruption.checkpoint else 0
    return f"{', '.join(names[:2])} after step {step}" if names else "nothing"
