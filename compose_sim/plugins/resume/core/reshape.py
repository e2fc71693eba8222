"""Compare a run with one that goes on with another number of ranks: what all ranks hold together, and the samples of the epoch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from compose_sim.node.records.resumption import TensorSketch
from compose_sim.plugins.resume.core.findings import MissingState
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference
from compose_sim.plugins.resume.core.trajectory import Name, Run, State, Trajectory

_GATHERED = "all ranks"  # in the place of the hash of a tensor whose parts cannot be hashed together
_DIGITS = 5  # of the norm of a tensor in parts


def gathered(run: Run) -> dict[int, Trajectory]:
    """Return one trajectory, as that of rank 0, with what all ranks hold and use together."""
    if not run:
        return {}
    steps = min(len(each.states) for each in run.values())
    states = tuple(_together([run[rank].states[step] for rank in sorted(run)]) for step in range(steps))
    lasts = [each.last for _, each in sorted(run.items()) if each.last is not None]
    return {0: Trajectory(states=states, last=_together(lasts) if len(lasts) == len(run) else None)}


def _together(states: list[State]) -> State:
    first = states[0]
    batches = tuple(batch for state in states for batch in state.batches)
    losses = [each.loss for each in states if each.loss is not None]
    mean = sum(losses) / len(losses) if losses else None
    return replace(first, tensors=_tensors(states), sharded=frozenset(), batches=batches, loss=mean, random={})


def _tensors(states: list[State]) -> dict[Name, TensorSketch]:
    found: dict[Name, TensorSketch] = {}
    for name in dict.fromkeys(name for state in states for name in state.tensors):
        parts = [state.tensors[name] for state in states if name in state.tensors]
        if any(name in state.sharded for state in states):
            norm = math.sqrt(sum(each.norm**2 for each in parts))
            found[name] = TensorSketch(f"{_GATHERED} {norm:.{_DIGITS}g}", norm, (norm,))
        else:  # replicated, or on one rank only
            found[name] = parts[0]
    return found


def compare_samples(reference: Reference, resumed: Run, step: int, moves: Moves) -> tuple[list[MissingState], str]:
    """Return what is wrong with the samples after the resume, and how the global batch has changed."""
    wanted, found = reference.at(0, step), resumed[0].states[0]
    if wanted is None or not wanted.batches or not found.batches:
        return [], ""
    then, now = (sum(1 for _ in _samples([state])) for state in (wanted, found))
    change = f"the global batch is {now} samples instead of {then}" if then != now else ""
    before = [state for each in range(step) if (state := reference.at(0, each)) and _epoch(state) == _epoch(wanted)]
    rest = [
        state
        for each in range(step, reference.steps)
        if (state := reference.at(0, each)) and _epoch(state) == _epoch(wanted)
    ]
    after = [state for state in resumed[0].states if _epoch(state) == _epoch(found)]
    if len(after) == len(resumed[0].states) or not before:  # the epoch does not end, or begins here
        return [], change
    twice = {sample for sample, count in Counter(_samples([*before, *after])).items() if count > 1}
    usual = {sample for sample, count in Counter(_samples([*before, *rest])).items() if count > 1}
    never = {*_samples(rest)} - {*_samples([*before, *after])}
    if not twice - usual and not never:
        return [], change
    text = f"in the epoch of the resume, {len(twice - usual)} samples are used twice and {len(never)} never"
    fix = "Save how many samples of the epoch all ranks used together, and skip them: the share of a rank depends on their number"
    return [MissingState(missing="sampler-position", step=step + 1, text=text, fix=fix, at=moves.loaded_at)], change


def _samples(states: Iterable[State]) -> Iterable[int]:
    return (each for state in states for batch in state.samples for each in batch or ())


def _epoch(state: State) -> int:
    return state.batches[0].epoch if state.batches else -1
