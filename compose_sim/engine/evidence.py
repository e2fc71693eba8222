"""What did a run leave for its checks to judge? Observations and output of its ranks, read from its folder when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.observations import Observed, RankObserved, parse_rank

_MOST_BYTES = 64 << 20  # of one file: what lies beyond is of a run too long to judge whole


def read_case(folder: Path, *, verdict: str, cause: Mapping[str, Any] | None, **more: Any) -> Case:
    """The case of a run's folder: its observations and logs, with what else the caller knows."""
    observed = read_observed(folder)
    return Case(observed=observed, verdict=verdict, cause=cause, logs=read_logs(folder), **more)


def read_observed(folder: Path) -> Observed:
    """What each rank observed in the last round it took part in."""
    newest: dict[int, tuple[int, str, Path]] = {}
    for path in sorted((folder / "observations").glob("*.*.*.jsonl")):
        node, rank, generation = path.name.removesuffix(".jsonl").rsplit(".", 2)
        if rank.isdigit() and generation.isdigit():
            newest[int(rank)] = max(newest.get(int(rank), (-1, "", path)), (int(generation), node, path))
    last = max((generation for generation, _, _ in newest.values()), default=0)
    ranks: dict[int, RankObserved] = {
        rank: parse_rank(node, rank, _lines(path)) for rank, (at, node, path) in newest.items() if at == last
    }
    return Observed(ranks=ranks)


def read_logs(folder: Path) -> dict[int, tuple[str, ...]]:
    """What each rank printed, by line."""
    logs = {}
    for path in sorted((folder / "logs").glob("*.*.log")):
        rank = path.name.removesuffix(".log").rsplit(".", 1)[1]
        if rank.isdigit():
            logs[int(rank)] = tuple(_lines(path))
    return logs


def _lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
