"""Sum up the times that a rank recorded: how much of its steps it waited for data, and how often and how much others waited for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from compose_sim.core.units import format_seconds

if TYPE_CHECKING:  # every command imports the report, and only few need timelines
    from compose_sim.core.state.timeline import RankTally

_STRAGGLES, _LEAST_S = 0.1, 0.5  # a score, and seconds: less is noise of a machine that many ranks share


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """The recorded steps of one rank in the last round."""

    rank: Annotated[int, "The rank"]
    steps_s: Annotated[float, "Seconds of its recorded steps; a long run leaves out some"]
    data_s: Annotated[float, "Of them, seconds in which it waited for a data loader"]
    collectives: Annotated[int, "Collectives in these steps that all ranks of the group recorded"]
    last: Annotated[int, "Of them, those in which it was the last rank to arrive"]
    late_s: Annotated[float, "By how many seconds it arrived later than the median rank, in all of them"]
    straggler_score: Annotated[float, "late_s as a share of steps_s: 0 for a rank for which no other waits"]

    @property
    def is_straggler(self) -> bool:
        """Whether the others usually wait for this rank, and noticeably."""
        return 2 * self.last > self.collectives and self.straggler_score >= _STRAGGLES and self.late_s >= _LEAST_S


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
            straggler_score=round(min(1.0, tally.late_s / tally.steps_s), 3) if tally.steps_s else 0.0,
        )
        for rank, tally in sorted(tallies.items())
    )


def straggler_line(times: Sequence[RankTimes]) -> str:
    """Return `rank 2: the last of 4 ranks in 58 of 60 collectives, 12 s behind in all (score 0.35)`; "" if no rank is one."""
    worst = next((each for each in times if each.is_straggler), None)
    return (
        ""
        if worst is None
        else (
            f"rank {worst.rank}: the last of {len(times)} ranks in {worst.last} of {worst.collectives} collectives, "
            f"{format_seconds(worst.late_s)} behind in all (score {worst.straggler_score:.2f})"
        )
    )


def data_share(times: Sequence[RankTimes]) -> float | None:
    """Return the share of their steps that ranks waited for data loaders; None if no rank recorded steps."""
    steps = sum(each.steps_s for each in times)
    return sum(each.data_s for each in times) / steps if steps else None
