"""
Judge whether gradients say how the loss changes, and whether tensors keep their gradient when ranks exchange them.

Without one rank to compare with, the loss itself is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, isfinite, sqrt
from statistics import mean
from typing import NamedTuple

from compose_sim.core.checks import Case, Result, failed, names_text, ranks_text, shape_text, warned
from compose_sim.core.checks.repeated_steps import step_place
from compose_sim.core.checks.sketches import ADAPTIVE, optimizers, parameter_names
from compose_sim.core.checks.tolerances import LOSS_FACTOR, MIN_STEPS
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.gradients import ContrastedSamples, DetachedInLoss, LossSlope, SketchedStep
from compose_sim.node.records.models import BY_HAND, OptimizerStep
from compose_sim.node.records.precautions import Clip
from compose_sim.node.records.process_groups import Collective

FIX_GATHER = (
    "Gather with `torch.distributed.nn.functional.all_gather`, which has a gradient; if the loss does not use the result, gather "
    "`tensor.detach()`."
)
_FIX_EXCHANGE = (
    "Exchange with `torch.distributed.nn.functional.all_to_all_single`, or in the forward of an autograd.Function whose backward sends "
    "gradients back; if no gradient is meant, send `tensor.detach()`."
)
_FIX_DETACHED = (
    "Gather with `torch.distributed.nn.functional.all_gather`, which has a gradient. If they are meant as constants, as the keys of "
    "another encoder are, nothing is wrong."
)
_MIN_MOVES, MIN_PROBED_STEPS = 3, 5  # moves of a parameter; steps, of which the first two move nothing
_UNSOUND = 0.95  # the correlation of both changes: that of right gradients is nearly 1
_SIZE = 0.1  # multiples of a change, which a step's curvature blurs
_NOISE = 1e-5  # of a loss, relative
_HIGH, _CHANCE = 4.0, 2.0  # standard deviations: no chance, and what chance explains
_SURE, _NOISE_IF_SURE = 0.99, 3e-6  # a correlation that shows that smaller changes are no noise


class _Move(NamedTuple):
    parameter: str
    copies: int  # different ones, which may be parts
    change: float  # of the mean loss of all ranks
    predicted: float  # by the gradients
    loss: float
    scaled: (
        float | None
    )  # by what the script multiplied the gradient before the step, if it is known, and equal on all ranks
    is_scaled: bool  # whether it may have scaled this gradient otherwise than those of other parameters
    is_own: bool  # whether ranks that began with the same values hold others by now, as in local SGD
    jumps: bool  # whether it changed what a rank chooses: the change is then not only that of which the gradient tells


def _moves(case: Case) -> list[_Move]:
    """Return what each move of a parameter did; none if both runs differ without one."""
    if case.probed is None:
        return []
    first, second = _by_step(case.observed), _by_step(case.probed)
    found = []
    for step, notes in sorted(second.items()):
        pairs = [
            (before.loss, each.loss)
            for rank, each in notes.items()
            if (before := first.get(step, {}).get(rank)) is not None
            and before.loss is not None
            and each.loss is not None
        ]
        if not pairs or len(notes) < case.observed.world_size:
            continue
        if any(each.is_cut for each in notes.values()):
            return []
        if not any(each.parameter for each in notes.values()):
            if not all(isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) for one, other in pairs):
                return []
            continue
        products: dict[int, list[float]] = {}  # of copies
        for each in notes.values():
            if each.product is not None:
                products.setdefault(each.held, []).append(each.product)
        predicted = sum(map(mean, products.values()))
        change, loss = mean(other - one for one, other in pairs), mean(abs(one) for one, _ in pairs)
        if products and all(map(isfinite, (predicted, change, loss))):
            name = next(each.parameter for each in notes.values() if each.parameter)
            is_scaled = any(
                each.scaled is None or not isclose(each.scaled, each.most_scaled or 0.0, rel_tol=LOSS_FACTOR)
                for each in notes.values()
                if each.product  # else the rank has an empty shard
            )
            scales = {each.scaled for each in notes.values() if each.product}
            scaled = scales.pop() if len(scales) == 1 else None
            is_own = len({each.began for each in notes.values()}) < len(products)
            jumps = _jumps(first.get(step, {}), notes)
            found.append(_Move(name, len(products), change, predicted, loss, scaled, is_scaled, is_own, jumps))
    return found


def _jumps(first: Mapping[int, LossSlope], second: Mapping[int, LossSlope]) -> bool:
    """Return whether a move has changed what a rank chooses, such as the expert of a token: no gradient tells of that."""
    return any(rank in first and each.choices != first[rank].choices for rank, each in second.items())


def _by_step(observed: Observed) -> dict[int, dict[int, LossSlope]]:
    found: dict[int, dict[int, LossSlope]] = {}
    for each in observed.of(LossSlope):
        found.setdefault(each.step, {})[each.rank] = each
    return found


def judge_slopes(case: Case) -> Result | None:
    """Find parameters whose gradients do not say how the loss changes."""
    found = _by_parameter(_moves(case))
    smooth = {name: [move for move in each if not move.jumps] for name, each in found.items()}
    correlations = {name: _correlation(each) for name, each in smooth.items() if _tell(each)}
    unsound = [name for name, value in correlations.items() if value < _UNSOUND and not _is_one_apart(smooth[name])]
    if not unsound:
        return _judge_sizes(case, {name: each for name, each in found.items() if _tell(each, _NOISE_IF_SURE)})
    worst = min(unsound, key=lambda name: correlations[name])
    return warned(
        f"the gradients of {names_text(unsound)} do not say how the loss changes if they are moved a little: the correlation is "
        f"{correlations[worst]:.2f} over {len(smooth[worst])} steps for {worst}, and nearly 1 for a right gradient",
        fix="Find what the backward pass loses, adds twice or gives to the wrong part: the `backward` of an autograd.Function, a "
        "gather without gradient, a mask or a slice of another rank. If a part of the loss is meant to have no gradient: "
        "`--skip matches-single`.",
        at=step_place(case),
    )


def _by_parameter(moves: list[_Move]) -> dict[str, list[_Move]]:
    found: dict[str, list[_Move]] = {}
    for each in moves:  # of averaged weights there is one copy now and then
        alike = [move.copies for move in moves if move.parameter == each.parameter]
        if each.copies == max(alike, key=alike.count):
            found.setdefault(each.parameter, []).append(each)
    return found


def _tell(moves: list[_Move], noise: float = _NOISE) -> bool:
    """Return whether there are enough moves, and one that is more than noise."""
    are_many = len(moves) >= _MIN_MOVES
    return are_many and max(abs(each.change) for each in moves) > noise * mean(each.loss for each in moves)


def _judge_sizes(case: Case, moves: dict[str, list[_Move]]) -> Result | None:
    """Find parameters whose gradients are a multiple of what the loss asks, while those of the others are not."""
    world_size = case.observed.world_size
    types = {each.type for each in case.observed.of(SketchedStep)}
    matters = any(not each.startswith(ADAPTIVE) for each in types) or any(case.observed.of(Clip))
    times = {
        name: 1 / _slope(each)
        for name, each in moves.items()
        if _correlation(each) >= (_UNSOUND if _tell(each) else _SURE)
    }
    # An update by hand may reduce and change one parameter after the other: what was used is then not seen for all.
    reduced = _reductions(case)
    scales = {name: _constant(reduced.get(name) or [each.scaled for each in moves[name]]) for name in times}
    known = {name: each * scale for name, each in times.items() if (scale := scales[name]) and BY_HAND not in types}
    uniform = {name: each for name, each in times.items() if not any(move.is_scaled for move in moves[name])}
    for found in (known, uniform) if matters else ():
        least = min(found, key=found.__getitem__, default="")
        for name, each in found.items():
            several = round(each / found[least])
            is_own = any(move.is_own for one in (name, least) for move in moves[one])
            if 1 < several <= world_size and isclose(each, several * found[least], rel_tol=_SIZE) and not is_own:
                return warned(
                    f"the gradient of {name} is {several} times as large as the change of the mean loss over ranks asks, over "
                    f"{len(moves[name])} steps in which it was moved a little, beside that of {least}",
                    fix="Divide the gradients of parameters that a rank has for all ranks, such as an expert, by the number of ranks "
                    "whose samples they add up, as the gradients of the others are averaged.",
                    at=step_place(case),
                )
    return None


def _reductions(case: Case) -> dict[str, list[float | None]]:
    """Return by what the script multiplied the mean of the ranks' gradients, by parameter and step; None where it is no multiple."""
    names, found = parameter_names(case.observed), dict[str, list[float | None]]()
    for optimizer in optimizers(case.observed):
        for each in optimizer.reductions:
            for name in (optimizer.rows[row].name for row in each.rows):
                found.setdefault(names.get(name, name), []).append(each.factor)
    return found


def _constant(factors: Sequence[float | None]) -> float | None:
    """Return the factor that was the same in all steps; None if there is none, or if one is not known."""
    known = [each for each in factors if each]
    alike = len(known) == len(factors) and all(isclose(each, known[0], rel_tol=LOSS_FACTOR) for each in known)
    return known[0] if known and alike else None


def _slope(found: list[_Move]) -> float:
    """Return how much of the predicted change there is."""
    square = sum(each.predicted**2 for each in found)
    return sum(each.change * each.predicted for each in found) / square if square > 0 else 0.0


def _correlation(found: list[_Move]) -> float:
    both = sum(each.change * each.predicted for each in found)
    sizes = sum(each.change**2 for each in found) * sum(each.predicted**2 for each in found)
    return both / sqrt(sizes) if sizes > 0 else 0.0


def _is_one_apart(found: list[_Move]) -> bool:
    """Return whether all moves but one agree: no wrong gradient, but something else in one step."""
    return any(_correlation([*found[:at], *found[at + 1 :]]) > _SURE for at in range(len(found)))


def lost_in_exchange(case: Case) -> Result | None:
    """Find tensors that require a gradient, and go through a collective that returns none in most steps."""
    for rank in case.observed:
        least = max(MIN_STEPS, sum(1 for _ in rank.of(OptimizerStep)) // 2)
        gathered = [(each.op, each.shapes[0], each.at) for each in rank.of(Collective) if each.detaches and each.shapes]
        exchanged = [each for each in rank.of(Collective) if each.detaches and each.op.startswith("all_to_all")]
        if len(exchanged) >= least:
            return failed(
                f"{exchanged[0].op} is given a tensor that requires a gradient, {len(exchanged)} times, and what it returns has none: "
                "nothing tells a rank how the loss of others depends on what it sends",
                fix=_FIX_EXCHANGE,
                at=exchanged[0].at,
            )
        detached = [(each.op, each.shape, each.at) for each in rank.of(DetachedInLoss)]
        for found, which, fix in ((gathered, "that requires a", FIX_GATHER), (detached, "without its", _FIX_DETACHED)):
            if len(found) >= least:
                op, shape, at = found[0]
                return warned(
                    f"{op} gathers a tensor ({shape_text(shape)}) {which} gradient {len(found)} times, and returns none: "
                    "a loss over the gathered tensors ignores how each rank's part changes the others' terms",
                    fix=fix,
                    at=at,
                )
    return None


def wrong_pairs(case: Case) -> Result | None:
    """Find contrastive losses whose targets name other samples than the partners."""
    found: dict[int, ContrastedSamples] = {}
    right = {each.rank for each in case.observed.of(ContrastedSamples) if each.chosen > _HIGH}
    for each in case.observed.of(ContrastedSamples):
        if each.rank not in right and (each.in_order or (each.own > _HIGH and each.chosen < _CHANCE)):
            found.setdefault(each.rank, each)
    least = case.observed.world_size - (not any(each.are_halves for each in found.values()))  # rank 0 has its own
    if not found or len(found) < least:
        return None
    rank, first = min(found.items())
    whom = "a cross entropy over the samples of all ranks has"
    if first.are_halves:
        half = first.size // 2
        return failed(
            f"{whom} targets that are not the partners, as the scores show: they are high {half} places on within each rank's part of "
            f"{first.size} samples, and by chance for the targets",
            fix="Gather each view by itself, `torch.cat([*gathered_first, *gathered_second])`, or count partners within each part.",
            at=first.at,
            ranks=[*found],
        )
    own = f"{rank * first.size} to {(rank + 1) * first.size - 1}"
    proof = f"its own have the places {own}" if first.in_order else f"the scores are high for {own}, its own"
    return failed(
        f"on {ranks_text([*found])} {whom} the targets 0 to {first.size - 1}, which are the samples of rank 0; on rank {rank} {proof}",
        fix="Count the targets from the place of this rank's samples: `torch.arange(size) + dist.get_rank() * size`.",
        at=first.at,
        ranks=[*found],
    )
