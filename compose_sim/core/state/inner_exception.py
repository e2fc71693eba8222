"""Find the exception behind that of a launcher, such as torch.multiprocessing.spawn, torchrun or a DataLoader's workers.

Their exceptions begin with an empty line or with a banner, and contain the traceback of the process that failed.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_WRAPPERS = ("ProcessRaisedException", "ChildFailedError")
_CAUGHT = re.compile(r"Caught \w+ in ")  # "Caught ValueError in DataLoader worker process 1."
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+)", re.MULTILINE)
_EXIT_CODE = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+)", re.MULTILINE)
_PROGRAM = re.compile(r"^(?P<program>\S+) FAILED$", re.MULTILINE)
_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/lib/python\d|/\.composesim/runs/[^/]+/node/|/compose_?sim/node/")


@dataclass(frozen=True, slots=True)
class _Found:
    message: str
    frames: tuple[tuple[str, str], ...]  # file and line, from the outermost call


def describe(kind: str, message: str) -> str:
    """Return `ValueError: boom`, or for a launcher's exception the inner one, with its file and line."""
    if kind in _WRAPPERS or _CAUGHT.match(message):
        found = _last_traceback(message)
        if found:
            return f"{found.message}{_place(found.frames)}"
        if kind == "ChildFailedError":
            return f"{kind}: {_exit(message)}"
    return f"{kind}: {message}".rstrip(": ")


def _last_traceback(text: str) -> _Found | None:
    before, begin, after = text.rpartition(_BEGIN)
    if not begin:
        return None
    label = before.rpartition("\n")[2]  # torchrun writes "traceback : " before the first line
    indent = "" if not label.strip() else label[: len(label) - len(label.lstrip())]
    frames: list[tuple[str, str]] = []
    for line in after.splitlines()[1:]:
        text = line.removeprefix(indent)
        frame = _FRAME.match(text)
        if frame:
            frames.append((frame["file"], frame["line"]))
        elif text[:1].strip():
            return _Found(text.strip(), tuple(frames))
    return None


def _place(frames: tuple[tuple[str, str], ...]) -> str:
    mine = [frame for frame in frames if not _NOT_THE_USERS.search(frame[0])] or list(frames)
    return f" ({posixpath.basename(mine[-1][0])}, line {mine[-1][1]})" if mine else ""


def _exit(message: str) -> str:
    program, rank, code = (pattern.search(message) for pattern in (_PROGRAM, _RANK, _EXIT_CODE))
    who = f"its rank {rank['rank']}" if rank else "a rank"
    how = f"exited with status {code['code']}" if code else "failed"
    return f"{program['program'] if program else 'the launched program'} failed: {who} {how}"
