"""Find what nodes wrote into the run's folder.

A container mounts only folders of one node, `nodes/NODE/KIND`, so that no node can write for another one. Processes of the
local engine share the folders `KIND`.
"""

from __future__ import annotations

import time
from pathlib import PurePath

from compose_sim.core.plan.model import NODES
from compose_sim.core.state.fold_driver import NODE as DRIVER
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
    """Finds files again and again while nodes make them. A folder is read only if it may have changed."""

    def __init__(self, files: SafeFolder) -> None:
        self._files = files
        self._found: dict[tuple[str, str], tuple[int, list[str]]] = {}  # folder, suffix -> when it changed, names

    def names(self, kind: str, suffix: str) -> list[str]:
        """Return what `files_of_nodes` returns."""
        names = [f"{kind}/{name}" for name in self._names(kind, suffix)]
        for node in self._names(NODES):
            folder = f"{NODES}/{node}/{kind}"
            names += [f"{folder}/{name}" for name in self._names(folder, suffix) if _writer(name) == node]
        return names

    def event_files(self) -> list[str]:
        """Return the names of a run's event files: that of composesim, then those that nodes and the master write."""
        journal, _, own = OWN_EVENTS.partition("/")
        names = [name for name in self.names("events", ".jsonl") if PurePath(name).name != own]
        return [OWN_EVENTS, *names] if own in self._names(journal, ".jsonl") else names

    def _names(self, folder: str, suffix: str = "") -> list[str]:
        """Return the names of a folder's files with this suffix, or of its folders if there is no suffix."""
        try:
            changed = (
                (self._files.path / folder).stat().st_mtime_ns
            )  # wherever it leads: it only saves reading a folder again
        except OSError:
            return []
        if (folder, suffix) in self._found and self._found[folder, suffix][0] == changed:
            return self._found[folder, suffix][1]
        names = self._files.files(folder, suffix) if suffix else self._files.folders(folder)
        if time.time_ns() - changed > _SETTLED_NS:
            self._found[folder, suffix] = (changed, names)
        return names


def _writer(name: str) -> str:
    """Return the node that writes a file, such as `node-0.1.log`; the driver runs on the master."""
    node = PurePath(name).name.partition(".")[0]
    return "master" if node == DRIVER else node
