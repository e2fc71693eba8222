"""Find what nodes wrote into the run's folder.

A container mounts only folders of one node, `nodes/NODE/KIND`, so that no node can write for another one. Processes of the
local engine share the folders `KIND`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath

from compose_sim.core.plan.model import NODES
from compose_sim.core.state.fold_driver import NODE as DRIVER
from compose_sim.engine.run_folder.safe_files import SafeFolder


def folder_of(files: SafeFolder, node: str) -> str:
    """Return what precedes the names of a node's files: `nodes/NODE/`, or nothing."""
    return f"{NODES}/{node}/" if node in files.folders(NODES) else ""


def files_of_nodes(files: SafeFolder, kind: str, suffix: str, *, besides: Collection[str] = ()) -> list[str]:
    """Return the names of all files of a kind. In the folder of a node, only files that are named after it count.

    The folders of the nodes `besides` these are searched: with many nodes, that takes long.
    """
    names = [f"{kind}/{name}" for name in files.files(kind, suffix)]
    for node in files.folders(NODES):
        if node in besides:
            continue
        folder = f"{NODES}/{node}/{kind}"
        names += [f"{folder}/{name}" for name in files.files(folder, suffix) if _writer(name) == node]
    return names


def _writer(name: str) -> str:
    """Return the node that writes a file, such as `node-0.1.log`; the driver runs on the master."""
    node = PurePath(name).name.partition(".")[0]
    return "master" if node == DRIVER else node
