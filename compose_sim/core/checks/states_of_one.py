"""Find states of optimizers that ranks held in parts, each its own, until all of them were given that of one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

from compose_sim.core.checks.replica_diff import Key, Value, Values, samples_of
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.models import KeptTensors
from compose_sim.node.records.record import Place

_Tensors = dict[str, tuple[int, str]]  # by name: the size and a hash
_MAX_ZEROS, _ZEROS_ON_DEVICE = 4 << 20, "0" * 16  # bytes of which all are hashed, and the hash of zeros on a GPU
_MIN_LOOKS = 2  # while the ranks train
_PADDING = 8  # a division of n elements may be padded by n / 8


def optimizer_state_of_another(observed: Observed) -> tuple[int, str, bool] | None:
    """
    Return after how many steps of an optimizer of torch, and which state of it, all ranks had been given that of one.

    The last value says whether their parameters differ, too: if not, these may be states that the ranks have averaged.
    """
    held = [samples_of(rank, by_join=False) for rank in observed]
    own: set[Key] = set()
    for moment in sorted(set.intersection(*map(set, held)) if len(held) > 1 else ()):
        values = [mine[moment][1] for mine in held]
        for key in (each for each in values[0] if each[0] == "optimizer state"):
            weight = ("parameter", key[1], key[2].partition(": ")[0])
            if not all(key in mine and weight in mine for mine in values) or not values[0][key][0]:
                continue
            states, weights = ({mine[each][3] for mine in values} - {None} for each in (key, weight))
            if len(states) == len(held):
                own.add(key)
            elif (
                key in own
                and (len(weights) == len(held) or _is_slice(key, weight, values))
                and _are_all_given(key, own, values)
            ):
                return held[0][moment][0], key[2], len(weights) == len(held)
    return None


def _are_all_given(key: Key, own: Collection[Key], values: Sequence[Values]) -> bool:
    """Return whether ranks have the same in each state of this parameter that was their own: one number may be alike by chance."""
    others = [each for each in own if each[:2] == key[:2] and each[2].partition(": ")[0] == key[2].partition(": ")[0]]
    return all(
        all(other in mine for mine in values)
        and len({mine[other][3] for mine in values}) == 1
        and not _may_be_zeros(values[0][other])
        for other in others
    )


def _is_slice(state: Key, weight: Key, values: Sequence[Values]) -> bool:
    """Return whether ranks with the same weights each keep a part of their state."""
    shapes = {mine[state][0] or () for mine in values}
    rows = values[0][weight][0] or ()
    # A factor of a state has as many dimensions as the weight or less, but one of them is 1, or it has the length of one.
    is_factor = any(1 in shape or (len(shape) == 1 < len(rows) and shape[0] in rows) for shape in shapes)
    return len(shapes) == 1 and not is_factor and _is_part(prod(min(shapes)), prod(rows), len(values))


def _is_part(size: int, whole: int, ranks: int) -> bool:
    return size < whole <= size * ranks <= whole + whole // _PADDING + ranks


def _may_be_zeros(value: Value) -> bool:
    """Return whether a state may have been set back; the hash of a large tensor does not tell."""
    shape, dtype, _, hashed = value
    size = prod(shape) * int("".join(filter(str.isdecimal, (dtype or "").removeprefix("b"))) or 0) // 8
    return size > _MAX_ZEROS or hashed in (_ZEROS_ON_DEVICE, blake2b(bytes(size), digest_size=8).hexdigest())


@dataclass(frozen=True, slots=True)
class GivenState:
    """Tensors of an optimizer of the script's own, which all ranks took from one checkpoint."""

    type: str
    names: list[str]
    steps: int
    at: Place | None


def kept_state_of_another(observed: Observed) -> GivenState | None:
    """Find the first load in which all ranks got the same parts of the state of an optimizer of the script's own."""
    held = [list(rank.of(KeptTensors)) for rank in observed]
    for given in held[0] if len(held) > 1 else ():
        if given.loaded is None:
            continue
        looks = [_looks(mine, given) for mine in held]
        own = [name for name in given.names if _were_apart(name, looks)]
        loads = [_loaded_with(mine, given) for mine in held]
        are_alike = all(all(load.get(name) == loads[0].get(name) for name in own) for load in loads)
        sizes = [loads[0][name][0] for name in own]
        if own and are_alike and _divide(sizes, _trained(held[0], given), len(held)):
            return GivenState(given.type, own, given.steps, given.loaded)
    return None


def _looks(held: Sequence[KeptTensors], given: KeptTensors) -> dict[int, _Tensors]:
    """Return what a rank held while it trained, before a load, by the number of steps."""
    return {
        each.steps: _tensors(each)
        for each in held
        if not each.loaded and each.type == given.type and each.steps < given.steps
    }


def _loaded_with(held: Sequence[KeptTensors], given: KeptTensors) -> _Tensors:
    """Return what a rank loaded in the same place after as many steps."""
    alike = (each for each in held if each.loaded and (each.type, each.steps) == (given.type, given.steps))
    return next(map(_tensors, alike), {})


def _tensors(each: KeptTensors) -> _Tensors:
    return dict(zip(each.names, zip(each.sizes, each.hashes, strict=True), strict=True))


def _were_apart(name: str, looks: Sequence[Mapping[int, _Tensors]]) -> bool:
    """Return whether each rank held another value of a tensor whenever it was looked at, which changed in between."""
    steps = set.intersection(*map(set, looks))
    values = [[held[step].get(name) for held in looks] for step in steps]
    are_apart = all(
        None not in at_once and len(set(at_once)) == len(looks) and len({each[0] for each in at_once if each}) == 1
        for at_once in values
    )
    return (
        len(steps) >= _MIN_LOOKS
        and are_apart
        and all(len(set(mine)) == len(steps) for mine in zip(*values, strict=True))
    )


def _trained(held: Sequence[KeptTensors], given: KeptTensors) -> Sequence[int]:
    """Return the sizes of the parameters that were trained before a load."""
    return next((each.parameters for each in held if each.parameters and each.steps < given.steps), ())


def _divide(sizes: Sequence[int], parameters: Sequence[int], ranks: int) -> bool:
    """
    Return whether tensors of these sizes, which each rank has, make up states of all parameters.

    Each is then a part of one parameter or of all, and they do not have the sizes of whole ones: what a rank keeps for itself for each
    parameter, such as the momentum of local SGD, may be given to all on purpose.
    """
    total = sum(parameters)
    if not Counter(parameters) - Counter(sizes) or sum(sizes) * ranks < total:
        return False
    return all(any(_is_part(size, whole, ranks) for whole in (total, *parameters)) for size in sizes)
