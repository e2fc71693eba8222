"""Say what is wrong with the samples of a step: which other step, epoch or rank they belong to."""

from __future__ import annotations

from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import LoaderInfo
from compose_sim.plugins.resume.core.findings import Missing, MissingState
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference
from compose_sim.plugins.resume.core.trajectory import State

_POSITION = "Save how many batches of the epoch were used, and skip them (or use StatefulDataLoader and save its state)"
_EPOCH = "Call sampler.set_epoch(epoch) with the epoch that the checkpoint was saved in, before the loader is iterated"
_RANDOM = "Save the state of each random generator on every rank, and restore it before the loader is iterated"
_RANK = "Save the loader's state of every rank, and let each rank load its own"
_MADE = "Save what the inputs are made from: generators of the script's own, running statistics, buffers, environments"
COUNT = (
    "Save the number of steps and epochs done together with the parameters of that step, and go on with the next one"
)
_PARTS = "Save only after an optimizer step, or save the gradients and the number of micro-batches too"


def samples_finding(
    reference: Reference, rank: int, step: int, begins: int, found: State, moves: Moves
) -> MissingState | None:
    """
    Return what is wrong with the samples of this step; None if they are the right ones, or nothing is known about them.

    The resumed run `begins` after so many steps.
    """
    wanted = reference.at(rank, step)
    if wanted is None or reference.why_not or not (wanted.batches and found.batches):
        return None
    missing: Missing
    has_same = wanted.samples == found.samples
    if wanted.rows == found.rows and (has_same or None not in wanted.rows):  # whatever a loader's indices stand for
        return None
    if has_same:
        missing, text = "random", "the samples are the right ones, but they were changed by other random numbers"
    else:
        missing, text = _explain(reference, rank, step, wanted, found, moves.interrupted)
    if missing in ("random", "sampler-rank") and _is_rank_0s(
        reference, rank, step, begins, _drawn(wanted, found), found, moves
    ):
        missing, text = "random-of-rank-0", f"{text}; the random state is that of rank 0"
    fix = {
        "sampler-position": _POSITION,
        "sampler-epoch": _EPOCH,
        "sampler-rank": _RANK,
        "accumulation": _PARTS,
        "off-by-one": COUNT,
        "random-of-rank-0": "Save the random state of every rank, and let each rank load its own",
    }.get(missing, _MADE if wanted.batches[0].loader < 0 and not _drawn(wanted, found) else _RANDOM)
    at = moves.place_for("random") if missing.startswith("random") else moves.loaded_at
    return MissingState(missing=missing, step=step + 1, text=text, fix=fix, ranks=(rank,), at=at)


def _is_rank_0s(
    reference: Reference, rank: int, step: int, begins: int, drawn: list[str], found: State, moves: Moves
) -> bool:
    """Return whether the generators that differ have the states of those of rank 0, or had them when they were restored."""
    first, start = reference.at(0, step), reference.at(0, begins - 1)
    own = reference.at(rank, begins - 1)
    if not rank or not drawn:
        return False
    if first is not None and all(first.random.get(each) == found.random.get(each) for each in drawn):
        return True
    if start is None or own is None:
        return False
    apart = {name: state for name, state in start.random.items() if own.random.get(name) != state}
    return bool(set(drawn) & moves.restored(rank, apart))


def _explain(
    reference: Reference, rank: int, step: int, wanted: State, found: State, observed: Observed
) -> tuple[Missing, str]:
    for other in sorted(reference.ranks):
        state = reference.at(other, step) if other != rank else None
        if state is not None and state.samples == found.samples:
            return "sampler-rank", f"the samples are those of rank {other}"
    if wanted.samples[1:] and found.samples and found.samples[0] in wanted.samples[1:]:
        lost = wanted.samples.index(found.samples[0])
        return (
            "accumulation",
            f"it goes on in the middle of an accumulation: {lost} of its {len(wanted.samples)} micro-batches are lost",
        )
    same = [each for each in range(reference.steps) if _samples(reference, rank, each) == found.samples]
    if not same:
        return _unknown(wanted, found, reference, rank, observed)
    nearest = min(same, key=lambda each: (abs(each - step) > 1, each))
    epoch, position = _place(reference, rank, nearest)
    wanted_epoch, wanted_position = _place(reference, rank, step)
    which = f"the samples are those of step {nearest + 1}"
    if (
        abs(nearest - step) == 1
        and (epoch == wanted_epoch or position == wanted_position == 0)
        and not _begins(reference, rank, nearest)
    ):
        return "off-by-one", f"{which}: the number of steps is off by one"
    if epoch != wanted_epoch and position == wanted_position:
        if _has_set_epoch(observed) or not _drawn(wanted, found):
            return "sampler-epoch", f"{which}, which belongs to another epoch"
        return "random", f"{which}: the order was drawn again from the random state of the start"
    if wanted.batches[0].loader < 0 and _drawn(wanted, found) and _is_of(reference, rank, nearest, found):
        return "random", f"{which}, because the random state is that of this step"
    return "sampler-position", which


def _unknown(wanted: State, found: State, reference: Reference, rank: int, observed: Observed) -> tuple[Missing, str]:
    if _follow(reference, rank, found):
        return "sampler-position", "the samples follow one another as before, but those of two steps are in one"
    drawn = _drawn(wanted, found)
    if drawn:
        return "random", f"no step has these samples: the random state of {' and '.join(drawn)} differs"
    if wanted.batches[0].loader < 0:
        return (
            "random",
            "no step has these inputs, and each random state that is known is right: what else they are made from is not",
        )
    if not _has_set_epoch(observed):
        return "random", "no step has these samples: a generator of its own, which gives their order, has another state"
    return "sampler-epoch", "no step has these samples: the order is another one"


def _follow(reference: Reference, rank: int, found: State) -> bool:
    """Return whether the samples of this step follow one another in the reference too."""
    own = [each for batch in found.samples for each in batch or ()]
    trained = reference.ranks[rank].states
    order = [each for state in trained for batch in state.samples for each in batch or ()]
    places = [place for place, each in enumerate(order) if own and each == own[0]]
    return len(own) > 1 and any(order[place : place + len(own)] == own for place in places)


def _samples(reference: Reference, rank: int, step: int) -> object:
    state = reference.at(rank, step)
    return state.samples if state is not None and state.batches else None


def _place(reference: Reference, rank: int, step: int) -> tuple[int, int]:
    """Return the epoch of a step, and how many steps of the epoch came before it."""
    state = reference.at(rank, step)
    epoch = state.batches[0].epoch if state is not None and state.batches else 0
    first = step
    while (
        first > 0
        and (before := reference.at(rank, first - 1)) is not None
        and before.batches
        and before.batches[0].epoch == epoch
    ):
        first -= 1
    return epoch, step - first


def _begins(reference: Reference, rank: int, step: int) -> bool:
    """Return whether an epoch begins with this step: then the position is lost, even if that is one step away."""
    return _place(reference, rank, step)[1] == 0


def _drawn(wanted: State, found: State) -> list[str]:
    """Return the generators with another state."""
    return [name for name, state in wanted.random.items() if found.random.get(name) != state]


def _is_of(reference: Reference, rank: int, step: int, found: State) -> bool:
    state = reference.at(rank, step)
    return state is not None and any(found.random.get(name) == value for name, value in state.random.items())


def _has_set_epoch(observed: Observed) -> bool:
    return any(each.set_epoch for each in observed.of(LoaderInfo))
