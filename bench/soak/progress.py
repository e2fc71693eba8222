"""Keep what a row has measured so far, so that several short soaks of one commit make up a long one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from bench import machine
from bench.soak.setting import REPOSITORY, Soak

_FILE = REPOSITORY / ".soak-progress.json"  # not committed


@contextmanager
def continued(row: str, soak: Soak) -> Iterator[None]:
    """Give a row the progress that earlier soaks of this commit, seed and number of repetitions made, and keep what it adds."""
    commit = machine.commit().removesuffix("+")  # the page of results, which a soak writes, is a change too
    of = soak.engine if row == "faults" else "both engines"
    key = f"{row} {commit} {soak.seed} {soak.times} {of}"
    try:
        known = json.loads(_FILE.read_text())
    except (OSError, ValueError):
        known = {}
    soak.progress = dict(known.get(key, {}))

    def save() -> None:
        _FILE.write_text(json.dumps({**known, key: soak.progress}))

    soak.save = save
    try:
        yield
    finally:
        soak.progress, soak.save = {}, lambda: None
