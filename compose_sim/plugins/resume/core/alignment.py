"""Find the step at which a resumed run continues: the one whose parameters it begins with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from compose_sim.plugins.resume.core.reference import Reference
from compose_sim.plugins.resume.core.trajectory import Name, Run, State, apart

_Changing = tuple[tuple[int, Name], ...]  # (rank, parameter)
_CLOSE = 2e-2  # relative: parameters that were saved with fewer digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The step of the reference after which the resumed run goes on."""

    step: int  # steps made; 0 is the start
    exact: bool = True  # whether parameters are equal bit for bit
    others: tuple[tuple[int, Name], ...] = ()  # (rank, parameter) that are not those of this step
    initial: bool = False  # whether those are what they were at the start
    averaged: bool = False  # whether those are averages of the weights


def align(reference: Reference, resumed: Run, *, likely: Sequence[int] = ()) -> Alignment | None:
    """
    Return where the first state of the resumed run belongs; None if it belongs nowhere.

    Of several steps with the same parameters, one of the `likely` ones is taken, or else the last one. Those of the start are no sign
    if others are those of a later step.
    """
    firsts = {rank: each.states[0] for rank, each in resumed.items() if each.states and rank in reference.ranks}
    changing = tuple(_changing(reference, firsts))
    scores = {step: _score(reference, firsts, changing, step) for step in range(reference.interrupted_at + 1)}
    best = max(scores.values(), default=0)
    if not firsts or not best:
        return _averaged(reference, firsts, changing) or _nearest(reference, firsts, changing)
    later = _unlike_start(reference, firsts, changing) if scores[0] == best else {}
    if later:
        scores, best = later, max(later.values())
    steps = [step for step, score in scores.items() if score == best]
    step = next((each for each in likely if each in steps), steps[-1])
    others = tuple(_others(reference, firsts, step))
    if not later and best < len(changing) / 2 and (near := _nearest(reference, firsts, changing)):
        return near
    initial = bool(others) and all(_is_initial(reference, firsts[rank], rank, name) for rank, name in others)
    return Alignment(step=step, others=others, initial=initial)


def _changing(reference: Reference, firsts: dict[int, State]) -> Iterable[tuple[int, Name]]:
    """Yield the parameters that training changes."""
    for rank in firsts:
        states = [reference.at(rank, step) for step in range(reference.interrupted_at + 1)]
        own = [each for each in states if each is not None and each.optimizer == firsts[rank].optimizer]
        if not own:
            continue
        begin, end = own[0], own[-1]
        for name, each in begin.of("parameter").items():
            if name in end.tensors and end.tensors[name].hash != each.hash:
                yield rank, name


def _score(reference: Reference, firsts: dict[int, State], changing: _Changing, step: int) -> int:
    return sum(
        1
        for rank, name in changing
        if (state := reference.at(rank, step)) is not None and _is_equal(state, firsts[rank], name)
    )


def _unlike_start(reference: Reference, firsts: dict[int, State], changing: _Changing) -> dict[int, int]:
    """Return, by step, how many parameters are those of this step and not those of the start; only steps with some."""
    moved = {
        rank: replace(
            first, tensors={n: it for n, it in first.tensors.items() if not _is_initial(reference, first, rank, n)}
        )
        for rank, first in firsts.items()
    }
    scores = {step: _score(reference, moved, changing, step) for step in range(1, reference.interrupted_at + 1)}
    return {step: score for step, score in scores.items() if score}


def _is_equal(state: State, first: State, name: Name) -> bool:
    return name in state.tensors and name in first.tensors and state.tensors[name].hash == first.tensors[name].hash


def _others(reference: Reference, firsts: dict[int, State], step: int) -> Iterable[tuple[int, Name]]:
    for rank, first in firsts.items():
        state = reference.at(rank, step)
        for name in state.of("parameter") if state is not None else ():
            if name in first.tensors and state is not None and not _is_equal(state, first, name):
                yield rank, name


def _is_initial(reference: Reference, first: State, rank: int, name: Name) -> bool:
    begin = reference.at(rank, 0)
    return begin is not None and _is_equal(begin, first, name)


def _averaged(reference: Reference, firsts: dict[int, State], changing: _Changing) -> Alignment | None:
    """Return the step whose averages of the weights the parameters are."""
    hashes = {(rank, each.hash) for rank, name in changing if (each := firsts[rank].tensors.get(name))}
    for step in range(reference.interrupted_at + 1) if hashes else ():
        states = ((rank, reference.at(rank, step)) for rank in firsts)
        if hashes <= {(rank, each) for rank, state in states if state is not None for each in state.averages}:
            return Alignment(step=step, others=changing, averaged=True)
    return None


def _nearest(reference: Reference, firsts: dict[int, State], changing: _Changing) -> Alignment | None:
    """Return the step with parameters that differ little; those of one step to the next differ more."""
    found: list[tuple[float, int]] = []
    for step in range(reference.interrupted_at + 1):
        differences = [
            apart(state.tensors[name], firsts[rank].tensors[name])
            for rank, name in changing
            if (state := reference.at(rank, step)) is not None
            and name in state.tensors
            and name in firsts[rank].tensors
        ]
        if differences:
            found.append((sorted(differences)[len(differences) // 2], step))
    nearest = min(found, default=None)
    if nearest is None or nearest[0] > _CLOSE:
        return None
    return Alignment(step=nearest[1], exact=False, others=tuple(_others(reference, firsts, nearest[1])))
