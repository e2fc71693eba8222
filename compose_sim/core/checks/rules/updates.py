"""Judge what steps make of the weights, beside one rank and beside other ranks, where gradients cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from compose_sim.core.checks import Case, Result, failed, names_text, passed, ranks_text, warned, where
from compose_sim.core.checks.repeated_steps import noise, step_place
from compose_sim.core.checks.replica_diff import Difference, compare, exchanges_parts, step_at
from compose_sim.core.checks.sketches import optimizers
from compose_sim.core.checks.tolerances import CLIP_FACTOR, MIN_STEPS, OTHER_UPDATE, PARALLEL, SAME_UPDATE
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.data import LoaderInfo
from compose_sim.node.records.gradients import SketchedStep, SketchedTensors
from compose_sim.node.records.models import BY_HAND, DdpModel, OptimizerStep, PlainTensors
from compose_sim.node.records.precautions import NormOfPart
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place, Record
from compose_sim.node.records.replays import HeldWeights, ReplayedUpdate
from compose_sim.node.records.script import ScriptEnd

_ALMOST_ALL_STEPS = 0.8  # of those of another rank
_LATER = "only the first step is compared, by what it makes of the weights"


def are_comparable(observed: Observed) -> bool:
    """Return whether all ranks held the same weights before the first step, and the same after it, or groups of them did."""
    held = [each for each in observed.of(HeldWeights) if each.steps == 1]
    alike = len(held) == observed.world_size > 1 and len({each.before for each in held}) == 1
    return alike and (len(_alike(held)) == 1 or bool(_groups(observed))) and held[0].before != held[0].after


def parted(case: Case) -> Result | None:
    """Find models that begin equal on all ranks, and are then equal only within several groups of them."""
    groups, held = _groups(case.observed), case.observed.first(HeldWeights)
    alone = case.weights.first(HeldWeights) if case.weights else None
    if not groups or held is None or alone is None or alone.before != held.before:
        return None  # parts of one model may begin alike: one rank then has other weights
    listed = " and ".join(ranks_text(ranks) for ranks in groups)
    return warned(
        f"all ranks began with the same weights, but after each step those of {listed} differ, and are equal within each group",
        fix="Reduce gradients over the ranks that hold the same part of different copies as well: print the ranks of each "
        "`dist.new_group`. If each group trains a model of its own: `--skip params-in-sync`.",
        at=step_place(case),
    )


def _groups(observed: Observed) -> list[tuple[int, ...]]:
    """Return the groups of several ranks that hold the same weights after each of the first steps; none if there is one, or others."""
    steps = _steps(observed)
    groups = _alike(steps[0]) if len(steps) >= MIN_STEPS else []
    if len(groups) < 2 or any(len(ranks) < 2 for ranks in groups):
        return []
    always = all(_alike(each) == groups for each in steps)  # else ranks may average them now and then
    return groups if always else []


def hold_the_same(observed: Observed) -> bool:
    """Return whether all ranks hold the same weights after each of the first steps."""
    steps = _steps(observed)
    return len(steps) >= MIN_STEPS and all(len(each) > 1 and len(_alike(each)) == 1 for each in steps)


def other_constants(case: Case) -> Result | None:
    """Find buffers that never change, and differ between ranks that hold the same weights and exchange nothing in forward."""
    observed = case.observed
    passes = [each.in_forward > 0 for each in observed.of(SketchedStep)]
    if not hold_the_same(observed) or 2 * sum(passes) > len(passes):
        return None
    steps = _steps(observed)
    names = [name for index, name in enumerate(steps[0][0].names) if _is_other_constant(steps, index)]
    if not names:
        return None
    return warned(
        f"all ranks hold the same weights after each of {len(steps)} steps, but buffers that never change differ between them: "
        f"{names_text(names)}",
        fix="Broadcast buffers as well as parameters: `for each in model.buffers(): dist.broadcast(each, 0)`. If each rank is meant to "
        "have its own, such as positions of its part of a sequence: `--skip params-in-sync`.",
        at=step_place(case),
    )


def other_attributes(case: Case) -> Result | None:
    """Find tensors that modules of a DDP model keep as plain attributes, that never change, and that differ between its ranks."""
    ranks_of = {(rank.rank, each.ddp): each.ranks for rank in case.observed for each in rank.of(DdpModel)}
    # A model's ranks, its number and a tensor -> the values of each rank
    held: dict[tuple[tuple[int, ...], int, str], dict[int, list[str]]] = {}
    for each in case.observed.of(PlainTensors):
        for name, value in zip(each.names, each.hashes, strict=True):
            key = ranks_of.get((each.rank, each.model), ()), each.model, name
            held.setdefault(key, {}).setdefault(each.rank, []).append(value)
    names = [
        name
        for (ranks, _, name), by_rank in held.items()
        if len(by_rank) == len(ranks)
        and all(len(values) > 1 == len({*values}) for values in by_rank.values())
        and len({values[0] for values in by_rank.values()}) > 1
    ]
    if not names:
        return None
    return warned(
        "the model's forward uses tensors that modules keep as plain attributes, which never change and differ between ranks: "
        f"{names_text(names)}; DDP makes parameters and buffers equal, but not these",
        fix="Make them from a seed that all ranks share, or register them: `self.register_buffer(name, tensor, persistent=False)`. If "
        "each rank is meant to have its own, such as its part of the data: `--skip params-in-sync`.",
        at=step_place(case),
    )


def _is_other_constant(steps: Sequence[Sequence[HeldWeights]], index: int) -> bool:
    """Return whether a buffer keeps its value on each rank, and not all ranks have the same."""
    values = [tuple(note.buffers[index : index + 1] for note in each) for each in steps]
    return len(set(values)) == 1 and len(set(values[0])) > 1


def _steps(observed: Observed) -> list[tuple[HeldWeights, ...]]:
    """Return what all ranks held after each step."""
    notes = zip(*([*rank.of(HeldWeights)] for rank in observed), strict=False)
    return [each for each in notes if len({note.steps for note in each}) == 1]


def _alike(notes: Sequence[HeldWeights]) -> list[tuple[int, ...]]:
    """Return the ranks that hold the same weights, group by group."""
    return sorted(tuple(each.rank for each in notes if each.after == after) for after in {each.after for each in notes})


def never_updated(observed: Observed) -> Result | None:
    """Find parameters with a gradient that an update by hand changes on no rank, while it changes others."""
    for each in optimizers(observed):
        steps = [step for by_rank in each.steps.values() for step in by_rank.values()]
        if len(each.steps) < MIN_STEPS or any(step.type != BY_HAND for step in steps):
            continue
        changed, left = [], []
        for row, tensor in enumerate(each.rows):
            values = [(step.used[row], step.before[row], step.after[row]) for step in steps if row < len(step.after)]
            if any(before != after for _, before, after in values):
                changed.append(tensor.name)
            elif values and all(used and any(used) for used, _, _ in values):
                left.append(tensor.name)
        if changed and left:
            return failed(
                f"no rank changes {names_text(left)} at any of {len(each.steps)} steps, although each gives a gradient, while "
                f"{format_count(len(changed), 'other parameter')} change",
                fix="Give each parameter to a rank that updates it: dividing their number by that of the ranks may leave a rest.",
                at=steps[0].at,
            )
    return None


def judge_update(case: Case) -> Result | None:
    """Compare the update of all ranks with that of one rank; None if that says nothing."""
    update = case.weights.first(ReplayedUpdate) if case.weights else None
    if update is None or noise(case.observed):
        return None
    if update.left and max(count for _, count in update.left) < case.observed.world_size:
        return failed(
            f"step 1 leaves the last numbers of {names_text([name.partition('.')[2] for name, _ in update.left])} as they were, on "
            f"all ranks: {sum(count for _, count in update.left)} that one rank with the same weights and samples changes",
            fix="Divide all numbers among the ranks: pad the flat parameters to a multiple of the world size, or give the last rank "
            "the rest. `numel // world_size` leaves it out.",
            at=step_place(case),
        )
    if update.difference < SAME_UPDATE:
        return passed(
            f"step 1 changes the weights as one rank with the same samples does, within {update.difference:.1e}",
            unjudged=_LATER,
        )
    may_be_scaled = update.cosine > PARALLEL and not update.settings_are_equal
    if update.difference < OTHER_UPDATE or may_be_scaled:
        return None
    return warned(
        f"step 1 changes the weights, most of all {update.tensor.partition('.')[2]}, otherwise than one rank with the same weights and "
        f"samples (relative difference {update.difference:.2g}, cosine {update.cosine:.3f}, ratio of norms {update.ratio:.3g})",
        fix="Find what depends on the world size between the backward pass and the update: over which ranks gradients are reduced, by "
        "what they are divided, a norm that counts only one rank's part, the part of the weights that a rank updates. If it is "
        "intentional: `--skip matches-single`.",
        at=step_place(case),
    )


def skipped_alone(case: Case) -> Result | None:
    """Find ranks that hold parts of one model, and left out steps that others made between the same collectives."""
    ends = {rank.rank: end for rank in case.observed if (end := rank.last(ScriptEnd))}
    steps = {rank: end.steps for rank, end in ends.items()}
    optimizers_of = {frozenset(each.optimizer for each in rank.of(OptimizerStep)) for rank in case.observed} - {
        frozenset()
    }
    exchanges_of = {end.synchronizations for end in ends.values()}
    is_together = len(exchanges_of) == len(optimizers_of) == 1 and len(ends) == case.observed.world_size
    most, few = max(steps.values(), default=0), min(filter(None, steps.values()), default=0)
    # A rank with another part in the training makes far fewer steps, of other parameters.
    is_like = few >= _ALMOST_ALL_STEPS * most or (
        all(steps.values()) and min(exchanges_of, default=0) >= most and _hold_alike_parts(case.observed)
    )
    # One that makes none may still exchange a gradient and a part of the weights at each step of the others.
    is_like = is_like and (all(steps.values()) or min(exchanges_of, default=0) >= 2 * most)
    if not is_together or few == most or not is_like or case.observed.first(DdpModel):
        return None
    if any(map(_steps_in_a_row, case.observed)):
        return None
    counts = ", ".join(f"rank {rank}: {steps[rank]}" for rank in sorted(steps))
    ranks = [rank for rank in sorted(steps) if steps[rank] < most]
    return warned(
        f"{ranks_text(ranks)} left out optimizer steps that others made between the same collectives ({counts}): as if each decides "
        "by its own part whether to skip a step, so that parts of the model miss updates",
        fix="Decide together: `dist.all_reduce(overflow, op=dist.ReduceOp.MAX)` before the step, and skip it on all ranks or on none.",
        at=step_place(case),
        ranks=ranks,
    )


def _steps_in_a_row(rank: RankObserved) -> bool:
    """Return whether the rank makes several steps between two exchanges, as a client of federated learning does."""
    waiting, is_again = (
        set[int](),
        False,
    )  # optimizers that have stepped since the last exchange, and whether one did twice
    for each in rank.of(Collective, OptimizerStep):
        if isinstance(each, OptimizerStep):
            is_again |= each.optimizer in waiting
            waiting.add(each.optimizer)
        elif is_again:
            return True
        else:
            waiting.clear()
    return False  # later exchanges may not be recorded


def _hold_alike_parts(observed: Observed) -> bool:
    """Return whether the optimizers of all ranks step parts of the same shapes, other ones from the start, at the same line."""
    found = [each for comparison in compare(observed) for each in (*comparison.different, *comparison.excused)]
    if not exchanges_parts(observed) or not found or any(each.nth for each in found if each.kind == "parameter"):
        return False
    shapes = {tuple(tuple(row.shape for row in each.rows) for each in rank.of(SketchedTensors)) for rank in observed}
    places = {frozenset(each.at for each in rank.of(OptimizerStep)) for rank in observed}
    return len(shapes) == len(places) == 1 and () not in shapes


def shares_data(case: Case) -> bool:
    """Return whether the data set is divided between ranks."""
    samplers = (name for each in case.observed.of(LoaderInfo) for name in each.samplers)
    return any("DistributedSampler" in name for name in samplers)


def is_outside(case: Case, found: Difference, has_models: bool) -> bool:
    """Return whether ranks that divide one data set, and wrap a model, begin with other values of a parameter beside it."""
    if not has_models or found.model is not None or found.kind != "parameter" or found.nth or not shares_data(case):
        return False
    # A matrix in every step may be activations, however small: then each rank may hold a part.
    matrices = [
        sum(not each.by_fsdp and any(len(shape) > 1 for shape in each.shapes) for each in rank.of(Collective))
        for rank in case.observed
    ]
    return max(matrices) < max(sum(1 for _ in rank.of(OptimizerStep)) for rank in case.observed)


def differs(
    case: Case, found: Difference, why: str, *, fix: str, at: Place | None = None, is_certain: bool = False
) -> Result:
    """Report that a tensor differs between ranks, since when, and why."""
    when, step = f"after step {found.nth}" if found.nth else "before the first step", step_at(case.observed, found)
    return (failed if is_certain else warned)(
        f"{when} {found} differs between ranks ({found.who}){why}",
        fix=fix,
        at=at or (step.at if step else None),
        ranks=[rank for alike in found.agreeing for rank in alike],
    )


def begun_outside(case: Case, found: Difference) -> Result:
    """Warn of a parameter beside the wrapper that differed from the start."""
    step = step_at(case.observed, found)
    return warned(
        f"{found} is outside DistributedDataParallel, and {found.who} from the start, in training with samples of one data set",
        fix="Make it part of the module that DistributedDataParallel wraps, or wrap it separately: then all ranks begin with the same "
        "values and reduce its gradient. If each rank is meant to have its own, such as codes of its samples: `--skip params-in-sync`.",
        at=step.at if step else None,
        ranks=[rank for ranks in found.agreeing for rank in ranks],
    )


def reduced_early(case: Case) -> Result | None:
    """Find steps before which FSDP gathered weights for more passes, but reduced only the gradients of the first."""
    for rank in case.observed:
        steps, early, issued = 0, list[OptimizerStep](), list[Collective]()
        for each in rank.of(Collective, OptimizerStep):
            if isinstance(each, Collective):
                issued += [each] if each.by_fsdp else []
                continue
            steps += each.backwards > 0  # it is known of sampled steps
            if each.backwards > 1 and _reduces_only_first(issued, passes=each.backwards):
                early.append(each)
            issued = []
        if len(early) >= MIN_STEPS and 2 * len(early) > steps:
            return failed(
                f"before {len(early)} of {steps} steps rank {rank.rank} made several backward passes ({early[0].backwards} before step "
                f"{early[0].nth}), and FSDP reduced gradients in the first and not in the last: what the later ones added is left for "
                "the next step",
                fix="Let FSDP reduce in the last backward pass before each step, and only there: "
                "`model.set_requires_gradient_sync(is_last)`, or `with model.no_sync():` around all others.",
                at=early[0].at,
            )
    return None


def _reduces_only_first(issued: Sequence[Collective], *, passes: int) -> bool:
    """Return whether weights of the same model are gathered in all further backward passes, where the last reduction was issued."""
    reduced = [place for place, each in enumerate(issued) if each.op.startswith("reduce_scatter")]
    gathers = [(place, each) for place, each in enumerate(issued) if each.op.startswith("all_gather")]
    before = [each.shapes for place, each in gathers if reduced and place < reduced[0]]
    # A teacher, or an average of the weights, may be gathered for a forward pass, at another line.
    after = [each for place, each in gathers if before and place > reduced[-1] and each.shapes in before]
    return sum(each.at == issued[reduced[-1]].at for each in after) >= passes - 1


def norms_of_parts(case: Case) -> Result | None:
    """Find norms of each rank's part that are not those of the whole."""
    apart = _norms_apart(case.observed)
    if not apart:
        return None
    shown = ", ".join(f"rank {each.rank}: {each.norm:.3g}" for each in apart[0])
    return warned(
        f"{len(apart)} times ranks take the norm of their own part{where(apart[0][0].at)} ({shown}), and give "
        "each other no numbers directly afterwards: what it scales is scaled otherwise on each rank",
        fix="Add up the squares over the ranks before the root: `total = part.norm() ** 2; dist.all_reduce(total); "
        "norm = total.sqrt()`. Of a DTensor, take the norm itself, not that of its local part.",
        at=apart[0][0].at,
    )


def _norms_apart(observed: Observed) -> list[tuple[NormOfPart, ...]]:
    """Return what one line takes as norms of the ranks' parts, where these differ, if ranks exchange nothing directly after them."""
    lines: dict[Place | None, dict[int, list[NormOfPart]]] = {}
    for each in observed.of(NormOfPart):
        lines.setdefault(each.at, {}).setdefault(each.rank, []).append(each)
    for by_rank in lines.values():
        is_common = len(by_rank) == observed.world_size and len({len(each) for each in by_rank.values()}) == 1
        together = [*zip(*by_rank.values(), strict=True)] if is_common else []
        apart = [each for each in together if _spread(each) > 1 + CLIP_FACTOR]
        often = len(apart) >= MIN_STEPS and 2 * len(apart) >= len(together)
        if often and not any(_sends_norms(observed.ranks[rank], found) for rank, found in by_rank.items()):
            return apart
    return []


def _spread(parts: Sequence[NormOfPart]) -> float:
    least = min(each.norm for each in parts)
    return max(each.norm for each in parts) / least if least else 1.0


def _sends_norms(rank: RankObserved, found: Sequence[NormOfPart]) -> bool:
    """Return whether a rank gives others a few numbers directly after norms, which may be these or the sum of their squares."""
    size = max(each.size for each in found)
    last: Record | None = None
    for each in rank.of(NormOfPart, Collective, OptimizerStep):
        if isinstance(each, Collective):
            if each.by_fsdp or each.op.startswith("reduce_scatter") or each.op == "barrier":
                continue
            if isinstance(last, NormOfPart) and sum(map(prod, each.shapes)) < size:
                return True
        last = each
    return False
