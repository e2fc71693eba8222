"""Read torch's flight recorder: the last collectives of this rank, and which of them have not completed.

torch records those of NCCL, and of gloo from torch 2.13 on. From torch 2.15 on, "nccl" is another implementation, which is recorded
under the name of its class, apart from the others. Any thread can read the recorder while the main thread waits
for a GPU. Dumps keep torch's own format, which `python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ..shared.frames import is_ours, is_user_code
from ..shared.progress_page import ProgressPage
from .torch_hooks.lazy_compiler import without_inductor

_SIZE = "2000"  # collectives; the default of new versions of torch, which older ones lack
_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # the second until torch 2.8
# Functions, and the backends whose collectives they return: NCCL's, gloo's, and those of torch 2.15 and later.
_RECORDERS = (
    ("_dump_nccl_trace", ""),
    ("_dump_fr_trace", ""),
    ("_dump_fr_trace", "nccl2"),
    ("_dump_fr_trace", "nccl-lazy"),
)
_MAX_PENDING, _MAX_RECENT = 4, 32

_earlier: set[str] = set()  # groups that were made before the current ones, and destroyed
_groups: dict[str, dict[str, str]] = {}  # what a dump contains about each group, by name


def enable(torch: Any) -> None:
    """Have torch record collectives, unless the user has decided that; must be called before a process group is made."""
    if not any(name in os.environ for name in _VARIABLES):
        version = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdecimal())
        os.environ[_VARIABLES[0] if version >= (2, 9) else _VARIABLES[1]] = _SIZE
    _earlier.update(name for name, _, _ in _statuses())


def answer(progress: ProgressPage) -> None:
    """Write into the page whether collectives are pending, and write a dump if the agent wants one."""
    groups = list(_statuses())
    progress.set("pending", sum(issued != completed for _, issued, completed in groups))
    progress.set("completed", sum(max(0, completed) for _, _, completed in groups))
    if progress.get("dump_wanted"):
        try:
            dump(progress)
        finally:
            progress.set("dump_wanted", 0)


def dump(progress: ProgressPage) -> None:
    """Write what the recorder holds: in torch's format, and as JSON the last ones and those that have not completed."""
    recorded = _recorded()
    if recorded is None:
        return
    entries = recorded["entries"]
    for entry in entries:  # ours would hide the script's: there may be ten of them
        entry["frames"] = [frame for frame in entry.get("frames") or () if not is_ours(frame["filename"])]
    _note_groups()
    recorded["pg_config"] = {**_groups, **{name: each for name, each in recorded["pg_config"].items() if name}}
    progress.flight_path.parent.mkdir(exist_ok=True)
    _write(progress.flight_path, pickle.dumps(recorded, protocol=2))
    reached: dict[str, int] = {}
    for entry in entries:
        group = entry["process_group"][0]
        reached[group] = max(reached.get(group, 0), entry["collective_seq_id"])
    pending = [_row(entry, recorded["pg_config"]) for entry in _pending(entries)]
    recent = [_row(entry, recorded["pg_config"]) for entry in entries[-_MAX_RECENT:] if not entry["is_p2p"]]
    found = {"pending": pending[:_MAX_PENDING], "reached": reached, "recent": recent}
    _write(progress.pending_path, json.dumps(found).encode())


def _statuses() -> Iterator[tuple[str, int, int]]:
    """Yield the number of each group that may still exist, and of its last collectives that were issued and completed."""
    for name, backend in _RECORDERS:
        read = _function(f"{name}_json", backend)
        groups = json.loads(read(False, False)).get("pg_status", {}) if read else {}
        for number, status in groups.items():
            key = f"{name} {backend} {number}"
            if key not in _earlier:
                issued, completed = status["last_enqueued_collective"], status["last_completed_collective"]
                yield key, int(issued), int(completed)


def _recorded() -> dict[str, Any] | None:
    """Return what torch has recorded; of NCCL if that has been used. The pickle comes from torch in this very process."""
    for name, backend in (*_RECORDERS[:1], *_RECORDERS[2:], _RECORDERS[1]):
        read = _function(name, backend)
        if read is None:
            continue
        with without_inductor():
            recorded = pickle.loads(read())
        if recorded.get("entries"):
            found: dict[str, Any] = recorded
            return found
    return None


def _function(name: str, backend: str) -> Any:
    """Return a function that reads a recorder; None if this torch does not have the recorder."""
    read = getattr(sys.modules.get("torch._C._distributed_c10d"), name, None)
    if read is None or not backend:
        return read
    return partial(read, backend=backend) if "backend" in (read.__doc__ or "") else None


def _note_groups() -> None:
    """Note the ranks of all groups: torch leaves them out for gloo, and forgets those of groups that were destroyed."""
    module: Any = sys.modules["torch.distributed.distributed_c10d"]
    for group, name in module._world.pg_names.items():
        try:
            ranks = str(module.get_process_group_ranks(group))
        except KeyError:  # torch has raised while it made the group
            continue
        _groups[name] = {"name": name, "desc": group.group_desc, "ranks": ranks}


def _pending(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (entry for entry in entries if not entry["retired"] and entry["state"] != "completed")


def _row(entry: dict[str, Any], groups: dict[str, dict[str, str]]) -> dict[str, Any]:
    group = entry["process_group"][0]
    frames = ((frame["filename"], frame["line"]) for frame in entry.get("frames") or ())
    return {
        "op": entry["profiling_name"].partition(":")[2].replace("all_reduce_barrier", "barrier"),
        "number": entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"],
        "group": group,
        "ranks": json.loads(groups.get(group, {}).get("ranks") or "[]"),
        "sizes": str(entry["input_sizes"]),
        "at": next(([file, line] for file, line in frames if is_user_code(file)), None),
    }


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(data)
    draft.replace(path)
