"""Read in which collectives ranks are now, from the pages of memory that they share with their agents: this costs them nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import PurePath

from compose_sim.core.events.event_data import printable
from compose_sim.core.state.state import ClusterState
from compose_sim.core.view.current import CurrentWait
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.node_files import NodeFiles
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.node.shared.progress_page import ProgressPage, WaitIn

_MOST_BYTES = 1 << 16  # a page has fewer


class RankWaits:
    """The pages of the ranks of a run."""

    def __init__(self, files: SafeFolder, found: NodeFiles) -> None:
        self._files, self._found = files, found
        self._opened: dict[str, int] = {}

    def read(self, state: ClusterState) -> tuple[dict[int, CurrentWait], set[int]]:
        """
        Return what ranks wait in, and which ranks are stopped.

        All of it was true at one moment: between the first and the second time that pages are read.
        """
        names = self._pages_of(state)
        first = {rank: _wait_in(self._read(name)) for rank, name in names.items()}
        pages = {rank: self._read(name) for rank, name in names.items()}
        waits = {
            rank: CurrentWait(
                printable(each.what),
                each.since / 1e6,
                printable(each.group),
                each.size,
                each.number,
                frozenset(other for other, page in pages.items() if _has_left(page, each)),
            )
            for rank, each in first.items()
            if each is not None and each.since and each == _wait_in(pages[rank])
        }
        return waits, {rank for rank, page in pages.items() if ProgressPage.is_halted_page(page)}

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()

    def _pages_of(self, state: ClusterState) -> dict[int, str]:
        """Return the names of the pages of the ranks that are there, in this round."""
        pages = {}
        for name in self._found.names("observations", ".progress"):
            node, rank, generation = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
            known = state.ranks.get(int(rank)) if rank.isdecimal() else None
            if known and known.node == node and known.phase != "exited" and generation == str(known.generation or 0):
                pages[known.rank] = name
        return pages

    def _read(self, name: str) -> bytes:
        with suppress(OSError, UnsafeFileError):
            if name not in self._opened:
                self._opened[name] = self._files.open_file(name)
            return os.pread(self._opened[name], _MOST_BYTES, 0)
        return b""


def _wait_in(page: bytes) -> WaitIn | None:
    with suppress(ValueError):
        return ProgressPage.wait_in_page(page)
    return None


def _has_left(page: bytes, wait: WaitIn) -> bool:
    return ProgressPage.finished_in_page(page, wait.group) >= wait.number > 0
