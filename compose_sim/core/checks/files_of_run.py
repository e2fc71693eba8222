"""Say which files a run has written, and whether a replay reads one that it would not have found without that run."""

from __future__ import annotations

from compose_sim.core.checks import CHECKPOINT_ENDINGS
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.devices_and_files import FileUse


def files_made(observed: Observed) -> frozenset[str]:
    """Return the files that a run wrote, and that it had not read before: they may have been there."""
    written: dict[str, float] = {}
    read: dict[str, float] = {}
    for each in observed.of(FileUse):
        for path in filter(None, (each.path, each.to)) if each.makes else ():
            written[path] = min(each.t, written.get(path, each.t))
        if each.op in ("read", "update", "append"):
            read[each.path] = min(each.t, read.get(each.path, each.t))
    return frozenset(path for path, t in written.items() if read.get(path, t) >= t)


def files_written(observed: Observed) -> frozenset[str]:
    """Return the files that a run changed."""
    uses = [each for each in observed.of(FileUse) if each.makes or each.op in ("update", "append")]
    return frozenset(path for each in uses for path in (each.path, each.to) if path)


def found_of_run(left: frozenset[str], replay: Observed) -> FileUse | None:
    """Return where a replay first reads a checkpoint that the run has left, and not the replay itself; None if it reads none."""
    for each in replay.of(FileUse):
        if each.makes:
            left -= {each.path, each.to or each.path}
        elif each.op == "read" and each.path in left and each.path.endswith(CHECKPOINT_ENDINGS):
            return each
    return None
