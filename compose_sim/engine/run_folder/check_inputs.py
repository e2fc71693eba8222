"""What did a run leave for its checks to judge? Observations and output of its ranks, read from its folder when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.events import Event, parse_event
from compose_sim.core.events.observations import Observed, RankObserved, parse_rank
from compose_sim.core.report.horovod_timeline import parse_timeline, shares_of
from compose_sim.core.state.fold import fold_all
from compose_sim.core.verdict.hang import standings_of
from compose_sim.core.verdict.stalled_rank import Standing
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError

TIMELINE = "logs/timeline.json"
_MOST_BYTES = 64 << 20  # of one file: what lies beyond is of a run too long to judge whole


def read_case(folder: Path, *, verdict: str, cause: Mapping[str, Any] | None, **more: Any) -> Case:
    """The case of a run's folder: its observations and logs, with what else the caller knows."""
    events = read_events(folder)
    return Case(
        observed=read_observed(folder),
        verdict=verdict,
        cause=cause,
        logs=read_logs(folder, events),
        stalls=read_standings(folder, events),
        **more,
    )


def read_timeline(folder: Path) -> dict[str, Any] | None:
    """Where Horovod's timeline of a run lies, and what it says of the ranks' time; None where there is none, or it says nothing."""
    file = folder / TIMELINE
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        return None
    shares = shares_of(parse_timeline(file.read_text(errors="replace")))
    return {"file": TIMELINE, **shares.to_dict()} if shares else None


def read_standings(folder: Path, events: list[Event]) -> tuple[Standing, ...]:
    """Where the ranks stood when they were stopped, and which had left before."""
    try:
        plan = RunFolder(folder).read_plan()
    except SpecError:  # somebody deleted it
        return ()
    return standings_of(fold_all(plan, events))


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


def read_logs(folder: Path, events: list[Event]) -> dict[int, tuple[str, ...]]:
    """What each rank printed in the last round, by line; a rank may have been on another node before, and have printed other things."""
    rounds = [event for event in events if event.kind == "rendezvous" and event.data.get("logs")]
    last = max((event.generation or 0 for event in rounds), default=0)
    begins = {
        f"{event.node}.{rank}.log": int(begins_at)
        for event in rounds
        if event.generation == last
        for rank, begins_at in event.data["logs"].items()
    }
    logs = {}
    for path in sorted((folder / "logs").glob("*.*.log")):
        rank = path.name.removesuffix(".log").rsplit(".", 1)[1]
        if rank.isdigit() and (path.name in begins or not begins):
            logs[int(rank)] = tuple(_lines(path, begins.get(path.name, 0)))
    return logs


def read_events(folder: Path) -> list[Event]:
    """All events of the run, in order of time."""
    events = [
        event for path in (folder / "events").glob("*.jsonl") for event in map(parse_event, _lines(path)) if event
    ]
    return sorted(events, key=lambda event: event.t)


def _lines(path: Path, begins_at: int = 0) -> list[str]:
    with path.open("rb") as file:
        file.seek(begins_at)
        return file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
