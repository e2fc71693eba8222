"""Say where each rank is when the time limit of a run has passed."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.state import ClusterState, Failure, RankState
from compose_sim.core.text import format_seconds
from compose_sim.core.verdict.hang import where_all_stand
from compose_sim.core.verdict.stalled_rank import Standing, standing_of

_MAX_NAMES = 4
_MAX_PLACES = 3
_LONG_START = 0.25  # of the time limit


def is_over_time(state: ClusterState, plan: Plan, *, now: float) -> bool:
    """Return whether the run takes longer than its time limit."""
    return bool(plan.timeout_s and state.started_at is not None and now - state.started_at > plan.timeout_s)


def to_ask(state: ClusterState, *, since: float) -> set[int]:
    """Return the ranks that run and have not said where they are since this moment."""
    return {rank.rank for rank in state.ranks.values() if _runs(rank, state) and rank.dumped_at < since}


def time_limit_reached(state: ClusterState, plan: Plan, *, now: float) -> Failure:
    """Return the cause of a run that composesim stops at its time limit: the line of each rank that has answered."""
    asked = [rank for rank in state.ranks.values() if _runs(rank, state) and _is_in_script(rank)]
    standings = tuple(standing_of(replace(rank, stall=rank.dump)) for rank in sorted(asked, key=lambda each: each.rank))
    where = _places(standings, plan.working_directory) if standings else _phases(state)
    where = state.hang.message if state.hang else where
    limit = plan.timeout_s or 0.0
    start = (now if state.rendezvous_at is None else state.rendezvous_at) - (state.started_at or 0.0)
    late = f", {format_seconds(start)} of them to start the nodes" if start > _LONG_START * limit else ""
    return Failure(
        t=now,
        kind="timeout",
        message=f"not done after {format_seconds(limit)}{late}: {where}",
        traceback=where_all_stand(standings, folder=plan.working_directory),
    )


def _runs(rank: RankState, state: ClusterState) -> bool:
    node = state.nodes.get(rank.node)
    return rank.phase != "exited" and node is not None and not node.is_gone


def _is_in_script(rank: RankState) -> bool:
    """Return whether a rank has answered: if it has not made a process group, only the script's line shows that it has begun."""
    return rank.dump is not None and bool(rank.phase != "starting" or rank.dump.get("place"))


def _places(standings: tuple[Standing, ...], folder: str) -> str:
    """Return `ranks 0, 1 in train.py, line 12: `loss.backward()`; rank 2 in all_reduce #3 (train.py, line 9)`."""
    places: dict[str, list[int]] = {}
    for each in standings:
        where = each.waits_in or (each.spot.describe(folder) if each.spot else "code of a library")
        places.setdefault(where, []).append(each.rank)
    parts = [f"{_ranks(ranks)} in {where}" for where, ranks in list(places.items())[:_MAX_PLACES]]
    return "; ".join(parts) + (" …" if len(places) > _MAX_PLACES else "")


def _ranks(ranks: list[int]) -> str:
    names = ", ".join(map(str, ranks[:_MAX_NAMES])) + (" …" if len(ranks) > _MAX_NAMES else "")
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _phases(state: ClusterState) -> str:
    """Return `node-0, node-1: running; node-2: lost`."""
    phases: dict[str, list[str]] = {}
    for node in state.nodes.values():
        phases.setdefault(node.phase, []).append(node.name)
    return "; ".join(
        f"{', '.join(names[:_MAX_NAMES])}{' …' if len(names) > _MAX_NAMES else ''}: {phase}"
        for phase, names in phases.items()
    )
