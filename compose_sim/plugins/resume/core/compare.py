"""Compare the resumed run with its reference, step by step and rank by rank, and name each state that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compose_sim.node.records.record import Place
from compose_sim.node.records.resumption import TensorSketch
from compose_sim.plugins.resume.core.findings import Missing, MissingState
from compose_sim.plugins.resume.core.moves import Moves
from compose_sim.plugins.resume.core.reference import Reference
from compose_sim.plugins.resume.core.samples import COUNT, samples_finding
from compose_sim.plugins.resume.core.trajectory import Name, Run, State, distance, names_of, unequal

_EXACT = 1e-6  # relative: what was saved and loaded again
_MOVED = 5e-2  # of the way that the parameters went since the resume
_CLOSELY = 8  # steps after the resume at which values are compared; later, rounding may have grown
_LOSS = 1e-5  # relative, at the first step
_SETTING = 1e-6
NOT_THE_AVERAGE = "Load the weights that train, not their average"
_NOT_COMPARED = ("initial_lr", "foreach", "fused", "capturable", "differentiable", "maximize", "decoupled_weight_decay")
_OF_RANDOM = ("random", "random-of-rank-0", "unknown")
_STATES: tuple[tuple[str, Missing], ...] = (
    ("optimizer state", "optimizer"),
    ("average", "average"),
    ("scaler", "scaler"),
    ("buffer", "buffers"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A step of one rank in both runs."""

    rank: int
    nth: int  # steps since the resume
    step: int  # steps before it in the whole run
    wanted: State
    found: State
    begins: State  # where the resumed run began, in the reference
    is_first: bool = False  # whether the optimizer has not stepped since the resume
    of_rank_0: State | None = None  # whose averages a checkpoint may hold for all ranks

    @property
    def averages(self) -> dict[Name, TensorSketch]:
        """The wanted averages that this rank has too, in the same variable, and not from rank 0."""
        found, shared = self.found.of("average"), self.of_rank_0.averages if self.of_rank_0 else set()
        wanted = self.wanted.of("average").items()
        return {name: each for name, each in wanted if name in found and found[name].hash not in shared}


def pairs(reference: Reference, resumed: Run, step: int) -> Iterator[Pair]:
    """Yield what can be compared, in the order of the steps."""
    longest = max((len(each.states) for each in resumed.values()), default=0)
    stepped: set[tuple[int, int]] = set()
    for nth in range(longest):
        for rank, trajectory in sorted(resumed.items()):
            wanted, begins = reference.at(rank, step + nth), reference.at(rank, step)
            if nth < len(trajectory.states) and wanted is not None and begins is not None and wanted.batches:
                found = trajectory.states[nth]
                own = rank, found.optimizer
                is_first = own not in stepped and found.optimizer == wanted.optimizer
                stepped.add(own)
                shared = reference.at(0, step + nth)
                yield Pair(rank, nth, step + nth, wanted, found, begins, is_first, shared)


def compare(reference: Reference, resumed: Run, step: int, moves: Moves) -> list[MissingState]:
    """Return what is missing if the resumed run goes on after `step` steps."""
    findings: list[MissingState] = []
    known: set[Missing] = set()
    for pair in pairs(reference, resumed, step):
        drawn = _drawn_since(pair, reference, moves, step)
        for each in _differences(pair, reference, moves, known):
            is_random = each.missing in _OF_RANDOM and pair.wanted.samples == pair.found.samples
            findings.append(_shifted(each, drawn) if is_random and drawn else each)
        if pair.rank == max(resumed):
            known |= {each.missing for each in findings}
    return _with_length(findings, reference, resumed, step, moves)


def _shifted(found: MissingState, drawn: set[str]) -> MissingState:
    """Return the finding for random states that were restored too early."""
    names = " and ".join(sorted(drawn))
    text = f"{names} had the restored random state, but drew once more since, as a new iterator over a loader does"
    fix = "Restore the random state just before the first step, when the loader is iterated already"
    return replace(found, missing="random", text=f"{text}: {found.text}", fix=fix)


def _with_length(
    findings: list[MissingState], reference: Reference, resumed: Run, step: int, moves: Moves
) -> list[MissingState]:
    """
    Return the findings and one about the number of steps until the end, if it differs.

    An epoch of samples that comes once more, or not at all, is a wrong counter, not a sampler without its epoch.
    """
    made, left = min(len(each.states) for each in resumed.values()), reference.steps - step
    if made == left or reference.why_not or not moves.is_over:
        return findings
    text = f"it ends after {step + made} steps instead of {reference.steps}"
    if not findings:
        at = moves.loaded_at
        return [
            MissingState(missing="off-by-one", step=min(step + made, reference.steps) + 1, text=text, fix=COUNT, at=at)
        ]
    is_counter = made > left and abs(made - left) > 1
    counted = {"sampler-epoch", "random"} | ({"sampler-position"} if _is_whole(reference, step, made) else set())
    return [
        replace(each, missing="off-by-one", text=f"{each.text}, and {text}", fix=COUNT)
        if is_counter and each.missing in counted and each.step == step + 1 and "those of step" in each.text
        else each
        for each in findings
    ]


def _is_whole(reference: Reference, step: int, made: int) -> bool:
    """Return whether the resumed run makes all steps once more, although the whole run was in another epoch than the first one."""
    states = [reference.at(min(reference.ranks), each) for each in (0, step)]
    epochs = {each.batches[0][:2] for each in states if each is not None and each.batches}
    return made == reference.steps and len(epochs) > 1


def _drawn_since(pair: Pair, reference: Reference, moves: Moves, step: int) -> set[str]:
    """
    Return the generators that this rank had restored, and that have another state now.

    A new iterator over a loader draws a number, and the whole run made none at this step.
    """
    saved = reference.at(pair.rank, step - 1)
    differing = set(_drawn(pair, reference))
    return differing if saved is not None and differing <= moves.restored(pair.rank, saved.random) else set()


def _drawn(pair: Pair, reference: Reference) -> list[str]:
    """Return the generators that this step draws from, and that have another state than in the reference."""
    before = reference.at(pair.rank, pair.step - 1) if pair.step else None
    return [
        name
        for name, state in pair.wanted.random.items()
        if pair.found.random.get(name) != state and (before is None or before.random.get(name, state) != state)
    ]


def compare_loaded(reference: Reference, resumed: Run, step: int, moves: Moves) -> list[MissingState]:
    """Return what is missing before the first step, whatever its samples are."""
    first = next(pairs(reference, resumed, step), None)
    if first is None:
        return []
    return [*_of_settings(first, reference, moves), *_loaded_wrong(first, moves, has_samples=False)]


def _differences(pair: Pair, reference: Reference, moves: Moves, known: set[Missing]) -> Iterator[MissingState]:
    found_here: list[MissingState] = []
    is_made = pair.wanted.batches and pair.wanted.batches[0].loader < 0  # by the script, perhaps from what models give
    if not (known and is_made) and not known & {
        "sampler-position",
        "sampler-epoch",
        "sampler-rank",
        "accumulation",
        "random",
        "random-of-rank-0",
        "off-by-one",
    }:
        found_here += _of_samples(pair, reference, moves)
    if "scheduler" not in known:
        found_here += _of_settings(pair, reference, moves)
    if pair.nth == 0:
        found_here += _loaded_wrong(pair, moves, has_samples=not found_here)
    elif pair.is_first:
        found_here += _other_loaded_wrong(pair, moves)
    yield from found_here
    if not known and not found_here and pair.nth < _CLOSELY:
        yield from _of_values(pair, reference, moves)


def _of_samples(pair: Pair, reference: Reference, moves: Moves) -> Iterator[MissingState]:
    found = samples_finding(reference, pair.rank, pair.step, pair.step - pair.nth, pair.found, moves)
    if found is not None:
        yield found


def _of_settings(pair: Pair, reference: Reference, moves: Moves) -> Iterator[MissingState]:
    """Compare learning rate and other settings of the parameter groups."""
    different = _different_settings(pair.wanted, pair.found)
    if not different:
        return
    group, key, wanted, found = different[0]
    shift = _shift_of(pair, reference, group, key, found)
    where = f", the value of step {shift + 1}" if shift is not None else ""
    text = f"{key} of group {group} is {found:.6g} instead of {wanted:.6g}{where}"
    fix = "Save scheduler.state_dict() and load it after the scheduler is made, or compute the value from the saved number of steps"
    if moves.loads("scheduler"):
        fix = "Load the scheduler's state after the optimizer's, and step neither between loading and the first step"
    yield _finding(pair, "scheduler", text, fix, moves.place_for("scheduler"))


def _different_settings(wanted: State, found: State) -> list[tuple[int, str, float, float]]:
    return [
        (number, key, value, now[key])
        for number, (then, now) in enumerate(zip(wanted.groups, found.groups, strict=False))
        for key, value in sorted(then.items(), key=lambda item: item[0] != "lr")
        if key in now and key not in _NOT_COMPARED and abs(now[key] - value) > _SETTING * max(abs(value), abs(now[key]))
    ]


def _shift_of(pair: Pair, reference: Reference, group: int, key: str, value: float) -> int | None:
    """Return the step of the reference that has this value: the first one, or one nearby."""
    steps = [
        step
        for step in range(reference.steps)
        if (state := reference.at(pair.rank, step)) is not None
        and group < len(state.groups)
        and abs(state.groups[group].get(key, float("inf")) - value) <= _SETTING * max(abs(value), 1e-12)
    ]
    return min(steps, key=lambda step: (step != pair.nth, abs(step - pair.step)), default=None)


def _loaded_wrong(pair: Pair, moves: Moves, *, has_samples: bool) -> Iterator[MissingState]:
    """Compare what the resumed run has loaded, before its first step."""
    for kind, missing in _STATES:
        if kind == "buffer" and not has_samples:  # running statistics have seen other samples
            continue
        wanted = pair.averages if kind == "average" else pair.wanted.of(kind)
        if wrong := unequal(wanted, pair.found.of(kind), _EXACT):
            if kind == "optimizer state" and _are_of_rank_0(wrong, pair):
                yield _part_of_rank_0(wrong, pair, moves)
                continue
            yield _finding(pair, missing, _text_of(kind, wrong, pair), moves.fix_for(missing), moves.place_for(missing))


def _are_of_rank_0(wrong: list[Name], pair: Pair) -> bool:
    first, found = pair.of_rank_0, pair.found.tensors
    return bool(pair.rank) and all(
        first is not None and name in first.tensors and name in found and found[name].hash == first.tensors[name].hash
        for name in wrong
    )


def _part_of_rank_0(wrong: list[Name], pair: Pair, moves: Moves) -> MissingState:
    count = f"{len(wrong)} of {len(pair.wanted.of('optimizer state'))}"
    text = f"{count} tensors of the optimizer state are the part of rank 0: {names_of(wrong)}"
    fix = "Let every rank save and load its own part (torch.distributed.checkpoint), or gather the whole state before rank 0 saves it"
    return _finding(pair, "shards", text, fix, moves.saved_at or moves.loaded_at)


def _other_loaded_wrong(pair: Pair, moves: Moves) -> Iterator[MissingState]:
    """Compare what has been loaded for an optimizer that steps after another one."""
    wanted, found = pair.wanted.of("parameter"), pair.found.of("parameter")
    if wrong := unequal(wanted, found, _EXACT):
        are_averages = all(name in found and found[name].hash in pair.wanted.averages for name in wrong)
        were = ": they are averages of the weights" if are_averages else ""
        text = (
            f"{len(wrong)} of {len(wanted)} parameters of another optimizer are not restored: {names_of(wrong)}{were}"
        )
        fix = NOT_THE_AVERAGE if are_averages else "Save and load the parameters of each optimizer"
        yield _finding(pair, "parameters", text, fix, moves.loaded_at)
    elif wrong := unequal(pair.wanted.of("optimizer state"), pair.found.of("optimizer state"), _EXACT):
        text = f"of another optimizer, {_text_of('optimizer state', wrong, pair)}"
        yield _finding(pair, "optimizer", text, moves.fix_for("optimizer"), moves.place_for("optimizer"))


def _text_of(kind: str, wrong: list[Name], pair: Pair) -> str:
    wanted, found = pair.wanted.of(kind), pair.found.of(kind)
    absent = [name for name in wrong if name not in found]
    zero = [name for name in wrong if name in found and not found[name].norm and wanted[name].norm]
    what = {"average": "averages of the weights", "buffer": "buffers"}.get(kind, f"tensors of the {kind}")
    if kind == "scaler":
        name = wrong[0]
        then, now = (each[name].sums[0] if name in each else float("nan") for each in (wanted, found))
        return f"{name[1]} of the gradient scaler is {now:g} instead of {then:g}"
    if absent:
        return f"{len(absent)} of {len(wanted)} {what} do not exist: {names_of(absent)}"
    if zero:
        return f"{len(zero)} of {len(wanted)} {what} are zero: {names_of(zero)}"
    return f"{len(wrong)} of {len(wanted)} {what} differ: {names_of(wrong)}"


def _of_values(pair: Pair, reference: Reference, moves: Moves) -> Iterator[MissingState]:
    """Compare what follows from all the rest: the loss, and how far the parameters are from where they should be."""
    if pair.wanted.backwards != pair.found.backwards:
        text = f"{pair.found.backwards} backward passes instead of {pair.wanted.backwards}"
        yield _finding(pair, "accumulation", text, moves.fix_for("accumulation"), moves.place_for("accumulation"))
        return
    tolerance = max(_LOSS if pair.nth == 0 else _MOVED / 5, 20 * reference.noise)
    then, now = pair.wanted.loss, pair.found.loss
    apart = abs(then - now) / max(abs(then), abs(now), 1e-12) if then is not None and now is not None else 0.0
    if apart > tolerance:
        yield _of_random(pair, f"the loss is {now:.6g} instead of {then:.6g}", reference, moves)
        return
    if not pair.nth:
        return
    wanted, found = (each.of("parameter") for each in (pair.wanted, pair.found))
    way = distance(wanted, pair.begins.of("parameter"))
    far = max(_MOVED, 100 * reference.noise)
    if way and (wrong := _wrong_averages(pair, far * way)):
        yield _finding(
            pair, "average", _text_of("average", wrong, pair), moves.fix_for("average"), moves.place_for("average")
        )
        return
    if way and distance(wanted, found) / way > far:
        wrong = unequal(wanted, found, _EXACT)
        yield _finding(
            pair,
            "unknown",
            f"parameters differ by {distance(wanted, found) / way:.0%} of the way since the resume: {names_of(wrong)}",
            "Look for state of the training that is not saved: what the loss, the gradients or the step depend on",
            moves.loaded_at,
        )


def _wrong_averages(pair: Pair, far: float) -> list[Name]:
    """Return the averages of the weights that differ by more than their rounding: some come to be at the first step only."""
    wanted, found = pair.averages, pair.found.of("average")
    return unequal(wanted, found, _LOSS) if distance(wanted, found) > far else []


def _of_random(pair: Pair, text: str, reference: Reference, moves: Moves) -> MissingState:
    """Explain a loss that differs although parameters and samples do not."""
    drawn = _drawn(pair, reference)
    if not drawn:
        fix = "Look for state of the training that is not saved and that the loss depends on"
        return _finding(
            pair, "unknown", f"{text}, with the same parameters, samples and random state", fix, moves.loaded_at
        )
    return random_finding(pair, reference, moves, drawn, text)


def random_finding(pair: Pair, reference: Reference, moves: Moves, names: list[str], text: str) -> MissingState:
    """Name the generators, and rank 0 if this rank has the state of its generators."""
    first, start = reference.at(0, pair.step), reference.at(0, pair.step - pair.nth - 1)
    is_first = bool(pair.rank) and (
        (first is not None and all(first.random.get(each) == pair.found.random.get(each) for each in names))
        or (start is not None and set(names) <= moves.restored(pair.rank, start.random))
    )
    what = f"the random state of {' and '.join(names)}"
    if is_first:
        fix = "Save the random state of every rank, and let each rank load its own"
        return _finding(
            pair, "random-of-rank-0", f"{what} equals that of rank 0: {text}", fix, moves.place_for("random")
        )
    return _finding(
        pair,
        "random",
        f"{what} was not restored: {text}",
        "Save the state of each random generator on every rank, and restore it just before training goes on",
        moves.place_for("random"),
    )


def _finding(pair: Pair, missing: Missing, text: str, fix: str, at: Place | None) -> MissingState:
    return MissingState(missing=missing, step=pair.step + 1, text=text, fix=fix, ranks=(pair.rank,), at=at)
