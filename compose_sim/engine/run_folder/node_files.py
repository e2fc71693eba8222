"""Find what nodes wrote into the run's folder.

A container mounts only folders of one node, `nodes/NODE/KIND`, so that no node can write for another one. Processes of the
local engine share the folders `KIND`.
"""

from __future__ import annotations

import os
import time

from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import DRIVER, NODES, Plan
from compose_sim.engine.run_folder.safe_files import SafeFolder

OWN_EVENTS = "journal/composesim.jsonl"  # of composesim itself, not where nodes write
_SETTLED_NS = (
    2_000_000_000  # a file system may give two changes in quick succession the same time; the coarsest counts 2 s
)


def folder_of(files: SafeFolder, node: str) -> str:
    """Return what precedes the names of a node's files: `nodes/NODE/`, or nothing."""
    return f"{NODES}/{node}/" if node in files.folders(NODES) else ""


def files_of_nodes(files: SafeFolder, kind: str, suffix: str) -> list[str]:
    """Return the names of all files of a kind. In the folder of a node, only files that are named after it count."""
    return NodeFiles(files).names(kind, suffix)


class NodeFiles:
    """
    Finds files again and again while nodes make them. A folder is read only if it may have changed.

    With a plan, only files of its nodes and ranks count, so that a rank cannot make composesim follow thousands of others.
    """

    def __init__(self, files: SafeFolder, plan: Plan | None = None) -> None:
        self._files, self._root = files, str(files.path)
        self._ranks = _ranks_of_writers(plan) if plan else None
        self.strays = ""  # a folder with files that do not count
        self._found: dict[tuple[str, str], tuple[int, list[str]]] = {}  # folder, suffix -> when it changed, names

    def names(self, kind: str, suffix: str) -> list[str]:
        """Return what `files_of_nodes` returns."""
        names = self._names(kind, suffix)
        for node in self._names(NODES):
            names += [name for name in self._names(f"{NODES}/{node}/{kind}", suffix) if _writer(name) == node]
        return names

    def event_files(self) -> list[str]:
        """Return the names of a run's event files: that of composesim, then those that nodes and the master write."""
        own = _file_name(OWN_EVENTS)
        return [OWN_EVENTS, *(name for name in self.names("events", ".jsonl") if _file_name(name) != own)]

    def _names(self, folder: str, suffix: str = "") -> list[str]:
        """Return the names of the files with this suffix that count, or of all folders if there is no suffix."""
        try:
            # Wherever a link leads: this only saves reading a folder again.
            changed = os.stat(f"{self._root}/{folder}").st_mtime_ns  # noqa: PTH116 - a microsecond, not ten
        except OSError:
            return []
        if (folder, suffix) in self._found and self._found[folder, suffix][0] == changed:
            return self._found[folder, suffix][1]
        if suffix:
            names = [f"{folder}/{name}" for name in self._files.files(folder, suffix) if self._counts(folder, name)]
        else:
            names = self._files.folders(folder)
        if time.time_ns() - changed > _SETTLED_NS:
            self._found[folder, suffix] = (changed, names)
        return names

    def _counts(self, folder: str, name: str) -> bool:
        writer, _, rank = name.rpartition(".")[0].partition(".")
        counts = self._ranks is None or rank in self._ranks.get(writer, ())
        self.strays = self.strays if counts else folder
        return counts


def _ranks_of_writers(plan: Plan) -> dict[str, set[str]]:
    """Return what may stand between the name of each writer and the suffix of its files: "", or a rank that it may get."""
    ranks = {DRIVER: range(1), "master": range(0), MPS_NAME: range(0)}
    for (
        node
    ) in plan.nodes:  # ranks are numbered in the order of the nodes, so those of a node decrease if others are missing
        ranks[node.name] = range(0 if plan.elastic else node.first_rank, node.first_rank + node.nproc)
    return {writer: {"", *map(str, each)} for writer, each in ranks.items()}


def _writer(name: str) -> str:
    """Return the node that writes a file, such as `node-0.1.log`; the driver runs on the master."""
    node = _file_name(name).partition(".")[0]
    return "master" if node == DRIVER else node


def _file_name(name: str) -> str:
    return name.rpartition("/")[2]
