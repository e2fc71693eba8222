"""Read tracebacks: the line of the user's code that raised, and the frames that matter to a reader."""

from __future__ import annotations

import re

from compose_sim.core.report.report import Place
from compose_sim.core.text import format_count

BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s{0,40}File "(?P<file>[^"]{1,4096})", line (?P<line>\d{1,9})')
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>[^/]+)")
_STANDARD = re.compile(r"/lib/python\d[^/]*/|^<frozen ")


def raised_at(traceback: str) -> Place | None:
    """Return the innermost line of the user's code in the last traceback of a text; None if it has none."""
    innermost = innermost_line(traceback)
    return Place(file=innermost[0], line=innermost[1]) if innermost else None


def innermost_line(traceback: str) -> tuple[str, int] | None:
    """Return the file and the line of `raised_at`, as the records of ranks hold places."""
    for line in reversed(traceback.rpartition(BEGIN)[2].splitlines()):
        frame = _FRAME.match(line)
        if frame and not _library(frame["file"]):
            return frame["file"], int(frame["line"])
    return None


def folded(traceback: str) -> str:
    """Return a traceback with one line for neighboring frames of libraries: `  … 6 frames in torch`."""
    lines: list[str] = []
    packages: list[str] = []  # of the frames that are left out
    in_library = False
    for line in traceback.splitlines():
        frame = _FRAME.match(line)
        library = _library(frame["file"]) if frame else ""
        if frame or not line.startswith("    "):
            in_library = bool(library)
        if library:
            packages.append(library)
        elif not in_library:
            lines += _left_out(packages)
            packages = []
            lines.append(line)
    return "\n".join([*lines, *_left_out(packages)])


def _library(file: str) -> str:
    """Return the package that a file belongs to, Python for its own modules, "" for the user's code."""
    package = _PACKAGE.search(file)
    return package["name"] if package else "Python" if _STANDARD.search(file) else ""


def _left_out(packages: list[str]) -> list[str]:
    return [f"  … {format_count(len(packages), 'frame')} in {', '.join(dict.fromkeys(packages))}"] if packages else []
