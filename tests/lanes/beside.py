"""What runs beside the lanes, and how did it end? Checks of another kind, and what makes things that some tests need.

`--beside NAME=COMMAND`: the tests with the marker NAME, if there are any, wait for the command's end, and fail where it failed.
A file tells the lanes: it is locked while the command runs, and holds what went wrong afterwards.
"""

from __future__ import annotations

import fcntl
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

_LAST_LINES = 60


class Beside:
    """A command under way, whose output goes to `NAME.log`."""

    def __init__(self, name: str, command: str, folder: Path) -> None:
        """Start it, with no lower priority: the lanes leave nothing of the processors, and wait for it in the end."""
        folder.mkdir(parents=True, exist_ok=True)
        self.need = Need(marker=name, file=folder.absolute() / f"{name}.outcome")
        self.problem = f"'{command}' was broken off"
        self._name, self._command, self._log, self._began = name, command, folder / f"{name}.log", time.monotonic()
        self._outcome = self.need.file.open("w")
        fcntl.flock(self._outcome, fcntl.LOCK_EX)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def look(self, *, wait: bool = False) -> None:
        """Tell the lanes and the person if it has ended; with `wait`, when it has."""
        status = self._process.wait() if wait else self._process.poll()
        if status is None or self._outcome.closed:
            return
        self.problem = self._words_on(status) if status else ""
        self._outcome.write(self.problem)
        self._outcome.close()
        seconds, word = time.monotonic() - self._began, "failed" if status else "passed"
        print(f"{'beside':<6} {seconds:6.1f} s  {word:<12} {self._command}", flush=True)

    def _words_on(self, status: int) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(
            [f"'{self._command}' ended with status {status}. The end of {self._log}:", *lines[-_LAST_LINES:]]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the tests with a marker wait for; `MARKER=FILE` on a lane's command line."""

    marker: str
    file: Path

    @staticmethod
    def of(word: str) -> Need:
        """What `str` made a word of."""
        marker, _, file = word.partition("=")
        return Need(marker=marker, file=Path(file))

    def __str__(self) -> str:
        return f"{self.marker}={self.file}"

    def is_of(self, test: pytest.Item) -> bool:
        """Whether this test waits for it."""
        return test.get_closest_marker(self.marker) is not None

    def has_ended(self, *, wait: bool = False) -> bool:
        """Whether the command has ended; with `wait` it has when this returns."""
        with self.file.open() as outcome:
            try:
                fcntl.flock(outcome, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return False
            return True

    @property
    def problem(self) -> str:
        """What went wrong, once the command has ended; nothing where all is well."""
        return self.file.read_text()
