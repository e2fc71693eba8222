"""Follow the TensorBoard event files that a run writes into its project and its shared folder."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from compose_sim.core.events.tensorboard import Scalar, read_scalars
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.safe_files import SafeFolder

_NAME = re.compile(r"events\.out\.tfevents\.(\d{9,11})\.([\w.-]{1,255}?)\.(\d{1,10})(?:\.\d+)?(?:\.v2)?")
_NOT_SEARCHED = re.compile(r"\..*|__pycache__|node_modules|venv|site-packages")
_DEEPEST, _MOST_FOLDERS, _MOST_FILES = 5, 500, 128
_MOST_BYTES = 4 << 20  # of a file at a time
_SEARCH_EACH_S = 5.0
_EARLIER_S = 2.0  # the name of a file has whole seconds


class ScalarFiles:
    """The event files of one run below one folder."""

    def __init__(self, folder: Path) -> None:
        self._files = SafeFolder(folder)
        self._offsets: dict[str, int] = {}
        self._searched = float("-inf")

    def read(self, since: float, *, is_over: bool) -> Iterator[tuple[str, int, list[Scalar]]]:
        """Yield host name and process id of a writer with new scalars, of files made after `since` (Unix seconds)."""
        if is_over or time.monotonic() - self._searched > _SEARCH_EACH_S:
            self._searched = time.monotonic()
            for name in _found(self._files, since):
                if len(self._offsets) < _MOST_FILES:
                    self._offsets.setdefault(name, 0)
        for name in list(self._offsets):
            made = _NAME.fullmatch(Path(name).name)
            while made and (scalars := self._more(name)):
                yield made[2], int(made[3]), scalars
                if not is_over:
                    break

    def _more(self, name: str) -> list[Scalar]:
        offset = self._offsets.get(name, -1)
        if offset < 0:
            return []
        try:
            scalars, taken = read_scalars(self._files.read_bytes(name, offset=offset, size=_MOST_BYTES))
        except (OSError, UnsafeFileError):
            return []
        except ValueError:  # not what TensorBoard writes
            self._offsets[name] = -1
            return []
        self._offsets[name] = offset + taken
        return scalars


def _found(files: SafeFolder, since: float) -> Iterator[str]:
    waiting, seen = [("", 0)], 0
    while waiting and seen < _MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        seen += 1
        with suppress(OSError, UnsafeFileError):
            above = f"{folder}/" if folder else ""
            for name in files.files(folder):
                made = _NAME.fullmatch(name)
                if made and int(made[1]) >= since - _EARLIER_S:
                    yield above + name
            if depth < _DEEPEST:
                waiting += [
                    (above + name, depth + 1) for name in files.folders(folder) if not _NOT_SEARCHED.fullmatch(name)
                ]
