"""Join the interrupted run and the whole run to the one that a resumed run should equal, and measure how far the two are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from compose_sim.plugins.resume.core.trajectory import Run, State, Trajectory, apart

_SAME = 1e-3  # relative: beyond it, two runs of a script are not the same
_TENSORS = ("parameter", "optimizer state", "buffer", "average", "scaler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the resumed run should do: the interrupted run as far as it came, and from then on the whole run."""

    ranks: Mapping[int, Trajectory]
    interrupted_at: int  # steps of the interrupted run, on the rank that came the furthest: a killed one may not have noted its last
    noise: float = 0.0  # the largest relative difference between both runs in the steps that both made
    why_not: str = ""  # why the two differ too much; then the reference ends with the interrupted run
    first_difference: int = 0  # the step at which they do

    def at(self, rank: int, step: int) -> State | None:
        """Return the state of a rank after so many steps."""
        found = self.ranks.get(rank)
        return found.at(step) if found else None

    @property
    def steps(self) -> int:
        """How many steps every rank of the reference made."""
        return min((len(each.states) for each in self.ranks.values()), default=0)


def make_reference(whole: Run, interrupted: Run) -> Reference:
    """Compare the stretch that both runs made, and join them."""
    common = min((len(each.states) for each in interrupted.values()), default=0)
    noise, why, first = 0.0, "", 0
    for step in range(common):
        for rank, trajectory in interrupted.items():
            other = whole.get(rank)
            one, two = trajectory.at(step), other.at(step) if other else None
            if one is None or two is None:
                continue
            found, what = _difference(one, two)
            if found > _SAME and not why:
                why, first = f"{what} of rank {rank} at step {step + 1}", step + 1
            noise = max(noise, min(found, _SAME))
        if why:
            break
    joined = {
        rank: Trajectory(
            states=trajectory.states if why else (*trajectory.states, *_after(whole.get(rank), len(trajectory.states))),
            last=trajectory.last if why or rank not in whole else whole[rank].last,
        )
        for rank, trajectory in interrupted.items()
    }
    if not why:
        joined = {rank: _without(joined[rank], _of_no_effect(whole, interrupted, rank)) for rank in joined}
    furthest = max((len(each.states) for each in interrupted.values()), default=0)
    return Reference(ranks=joined, interrupted_at=furthest, noise=noise, why_not=why, first_difference=first)


def _of_no_effect(whole: Run, interrupted: Run, rank: int) -> set[str]:
    """Return the random generators of a rank that are not drawn from: each run has them in another state, and keeps them in it."""
    one, two = (run[rank].states if rank in run else () for run in (whole, interrupted))
    begun = one[0].random if one and two else {}
    return {
        name
        for name, state in begun.items()
        if two[0].random.get(name) != state and all(each.random.get(name) == state for each in one)
    }


def _without(trajectory: Trajectory, generators: set[str]) -> Trajectory:
    if not generators:
        return trajectory

    def stripped(state: State) -> State:
        return replace(state, random={name: each for name, each in state.random.items() if name not in generators})

    last = trajectory.last
    return Trajectory(states=tuple(map(stripped, trajectory.states)), last=last and stripped(last))


def _after(whole: Trajectory | None, step: int) -> tuple[State, ...]:
    return whole.states[step:] if whole else ()


def _difference(one: State, two: State) -> tuple[float, str]:
    """Return the largest relative difference of two states, and in what; samples are the same or not."""
    if one.samples != two.samples:
        return 1.0, "the samples"
    if one.rows != two.rows:
        return 1.0, "the augmentation of the samples"
    largest, what = 0.0, ""
    for kind in _TENSORS:
        mine, its = one.of(kind), two.of(kind)
        size = sum(each.norm**2 for each in mine.values()) ** 0.5
        for name, each in mine.items():
            if name in its:
                # As a part of all tensors of this kind: a gradient that is only rounding can turn a small tensor around.
                found = apart(each, its[name]) * (each.norm / size if size else 0.0)
                if found > largest:
                    largest, what = found, f"the {kind} {name[1]}"
    if one.loss is not None and two.loss is not None:
        found = abs(one.loss - two.loss) / max(abs(one.loss), abs(two.loss), 1e-12)
        if found > largest:
            largest, what = found, "the loss"
    return largest, what
