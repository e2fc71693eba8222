"""Infer what limited training: from what nodes used, and from how long ranks waited for data and for each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal

from compose_sim.core.state.state import Load
from compose_sim.core.text import format_bytes, format_seconds

if TYPE_CHECKING:  # every command imports the report, and only few need timelines
    from compose_sim.core.state.timeline import RankTally


_MIN_SECONDS = 10.0  # of training; a shorter run shows little but its start
_BUSY = 0.8
_MUCH_DATA = 0.3  # the share of steps that ranks wait for their data loaders
_MUCH_SENT = 200e6  # bytes per second and node: about what the sockets of a container carry before they fill a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What most likely limited the training."""

    what: Annotated[Literal["GPU", "communication", "CPU", "input"], "The limiting resource"]
    why: Annotated[str, "The numbers from which this was inferred"]


def find_bottleneck(loads: Sequence[Load], *, cpus: float, data_share: float | None = None) -> Bottleneck | None:
    """
    Return the likely bottleneck of nodes that share `cpus` CPUs; None if any of them trained too short a time, or nothing is one.

    `data_share` is the share of their steps in which ranks waited for data loaders, if that was observed.
    """
    if not loads or min(load.seconds for load in loads) < _MIN_SECONDS:
        return None
    seconds = sum(load.seconds for load in loads) / len(loads)
    cpu = sum(load.cpu_seconds for load in loads) / seconds / cpus
    gpus = [load.gpu_seconds / load.seconds for load in loads if load.gpu_seconds is not None]
    gpu = sum(gpus) / len(gpus) if gpus else None
    sent = [load.sent_bytes / load.seconds for load in loads if load.sent_bytes is not None]
    network = sum(sent) / len(sent) if sent else None
    evidence = ", ".join(_evidence(cpu, cpus, gpu, network))
    # NCCL spins on the GPU while it waits for the network: a busy GPU means nothing while much is sent.
    if network is not None and network >= _MUCH_SENT:
        return Bottleneck(what="communication", why=evidence)
    if gpu is not None and gpu >= _BUSY:
        return Bottleneck(what="GPU", why=evidence)
    if data_share is not None and data_share >= _MUCH_DATA:
        return Bottleneck(
            what="input", why=f"ranks waited for data loaders in {data_share:.0%} of their steps; {evidence}"
        )
    return Bottleneck(what="CPU", why=evidence) if cpu >= _BUSY else None


def _evidence(cpu: float, cpus: float, gpu: float | None, network: float | None) -> list[str]:
    return [
        *([f"GPU {gpu:.0%} busy"] if gpu is not None else []),
        f"{cpu:.0%} of {cpus:g} CPUs in use",
        *([f"each node sent {format_bytes(network)}/s"] if network is not None else []),
    ]


_STRAGGLES, _MIN_S = 0.1, 0.5  # a score, and seconds: less is noise of a machine that many ranks share


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The recorded steps of one rank in the last round."""

    rank: Annotated[int, "The rank"]
    steps_s: Annotated[float, "Seconds of its recorded steps; a long run leaves out some"]
    data_s: Annotated[float, "Of them, seconds in which it waited for a data loader"]
    collectives: Annotated[int, "Collectives in these steps that all ranks of the group recorded"]
    last: Annotated[int, "Of them, those in which it was the last rank to arrive"]
    late_s: Annotated[float, "By how many seconds it arrived later than the median rank, in all of them"]
    held_up_s: Annotated[float, "How much shorter they would have been had it arrived with the median rank"] = 0.0
    late_at: Annotated[str, "The line at which it mostly was while all others waited for it; empty if not known"] = ""
    straggler_score: Annotated[float, "late_s as a share of steps_s: 0 for a rank for which no other waits"]

    @property
    def is_straggler(self) -> bool:
        """Whether the others usually wait for this rank, and noticeably: of two ranks, each is last about half of the time."""
        return (
            3 * self.last >= 2 * self.collectives > 0 and self.straggler_score >= _STRAGGLES and self.late_s >= _MIN_S
        )


def rank_times(tallies: Mapping[int, RankTally]) -> tuple[RankTimes, ...]:
    """Return the times of all ranks, in order."""
    return tuple(
        RankTimes(
            rank=rank,
            steps_s=round(tally.steps_s, 3),
            data_s=round(tally.data_s, 3),
            collectives=tally.collectives,
            last=tally.last,
            late_s=round(tally.late_s, 3),
            held_up_s=round(tally.held_up_s, 3),
            late_at=_most_at(tally),
            straggler_score=round(min(1.0, tally.late_s / tally.steps_s), 3) if tally.steps_s else 0.0,
        )
        for rank, tally in sorted(tallies.items())
    )


def _most_at(tally: RankTally) -> str:
    """Return `train.py, line 17`, if the samples of that line explain most of the time."""
    (file, line), seconds = max(tally.late_at.items(), key=lambda each: each[1], default=(("", 0), 0.0))
    return f"{' '.join(PurePath(file).name.split())}, line {line}" if seconds > tally.held_up_s / 2 else ""


def straggler_of(times: Sequence[RankTimes]) -> RankTimes | None:
    """Return the times of the straggler, if a rank is one."""
    return next((each for each in times if each.is_straggler), None)


def straggler_line(times: Sequence[RankTimes]) -> str:
    """Return `rank 2: the last of 4 ranks in 58 of 60 collectives, 12 s behind in all (score 0.35)`; "" if no rank is one."""
    worst = straggler_of(times)
    return (
        ""
        if worst is None
        else (
            f"rank {worst.rank}: the last of {len(times)} ranks in {worst.last} of {worst.collectives} collectives, "
            f"{format_seconds(worst.late_s)} behind in all (score {worst.straggler_score:.2f})"
            + (f", mostly at {worst.late_at}" if worst.late_at else "")
        )
    )


def data_share(times: Sequence[RankTimes]) -> float | None:
    """Return the share of their steps that ranks waited for data loaders; None if no rank recorded steps."""
    steps = sum(each.steps_s for each in times)
    return sum(each.data_s for each in times) / steps if steps else None
