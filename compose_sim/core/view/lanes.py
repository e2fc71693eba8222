"""Draw what each rank does as a line of characters: the lanes of the page, for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from compose_sim.core.state.timeline import KINDS
from compose_sim.core.view.page import Message

COMPUTES, WAITS, MOVES, AWAITED, ELSE = "█", "░", "▒", "▓", " "
_OF_KIND = {"waiting": WAITS, "moving": MOVES, "collective": MOVES}  # all other kinds compute


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank: where it is, its steps, a character for each part of the time, and who waits for it or for whom it waits."""

    rank: int
    node: str
    step: int | None
    cells: str
    words: str


class Lanes:
    """The last seconds of all ranks."""

    def __init__(self, *, seconds: float, cells: int) -> None:
        """Divide this time into this number of cells."""
        self._each = seconds / cells
        self._cells = cells
        self._spans: list[list[Any]] = []

    def take(self, message: Message) -> list[Lane]:
        """Return the lanes after a further message of the page."""
        now = message["now"]
        first = now["t"] - self._each * self._cells
        recent = (span for span in (*self._spans, *message["spans"]) if (span[2] + span[3]) / 1e6 > first)
        self._spans = list(recent)
        current = {int(rank): wait for rank, wait in now.get("current", {}).items()}
        open_waits = [
            [rank, kind, began * 1e6, (now["t"] - began) * 1e6, 0, 0, late[0] if late else None]
            for rank, (kind, _, began, _, late) in current.items()
            if began is not None
        ]
        waiters: dict[int, list[int]] = defaultdict(list)
        for rank, (_, _, _, _, late) in current.items():
            for each in late:
                waiters[each].append(rank)
        drawn = self._drawn([*self._spans, *open_waits], first)
        return [
            Lane(each["rank"], each["node"], each["step"], drawn.get(each["rank"], ELSE * self._cells), words)
            for each in sorted(now["ranks"], key=lambda each: each["rank"])
            for words in [_words(each, current.get(each["rank"]), waiters[each["rank"]])]
        ]

    def _drawn(self, spans: Iterable[Sequence[Any]], first: float) -> dict[int, str]:
        times: dict[int, list[dict[str, float]]] = defaultdict(lambda: [defaultdict(float) for _ in range(self._cells)])
        for rank, kind, began, lasted, _, _, late in spans:
            self._add(times[rank], _OF_KIND.get(KINDS[kind], COMPUTES), began / 1e6 - first, lasted / 1e6)
            if late is not None:
                self._add(times[late], AWAITED, began / 1e6 - first, lasted / 1e6)
        return {
            rank: "".join(max(cell, key=cell.__getitem__) if cell else ELSE for cell in cells)
            for rank, cells in times.items()
        }

    def _add(self, cells: list[dict[str, float]], mark: str, began: float, lasted: float) -> None:
        for at in range(max(0, int(began / self._each)), min(self._cells, int((began + lasted) / self._each) + 1)):
            within = min((at + 1) * self._each, began + lasted) - max(at * self._each, began)
            if within > 0:
                cells[at][mark] += within


def _words(rank: dict[str, Any], wait: list[Any] | None, waiters: list[int]) -> str:
    if waiters:
        return f"{len(waiters)} wait for it" if len(waiters) > 1 else f"rank {waiters[0]} waits for it"
    if wait and wait[4]:
        lasted = "" if wait[3] is None else f" for {wait[3]:.0f} s"
        return f"waits{lasted}: rank {wait[4][0]}"
    if rank["exit_code"] is not None:
        return "finished" if rank["exit_code"] == 0 else f"exit code {rank['exit_code']}"
    return str(rank["phase"])
