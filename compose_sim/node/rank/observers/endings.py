"""Was the training over when the script raised? Told by where it stood at its last backward pass, and where it raised."""

from __future__ import annotations

import ast
import linecache
import sys
from types import CodeType, FrameType
from typing import Any

from ...shared.frames import is_user_code
from ..context import Watch
from . import backward

_LAST = "endings.last"
Stack = list[tuple[CodeType, int]]  # of the person's own code, outermost first

_own: dict[CodeType, bool] = {}


def install() -> None:
    backward.before.append(_note)


def end(watch: Watch) -> None:
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or _LAST not in watch.memory:
        return
    raised: Stack = []
    traceback = error.__traceback__
    while traceback is not None:
        if _is_own(traceback.tb_frame.f_code):
            raised.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    if raised and is_behind(watch.memory[_LAST], raised):
        watch.note("raised-after-training", at=[raised[-1][0].co_filename, raised[-1][1]])


def is_behind(trained: Stack, raised: Stack) -> bool:
    """Whether `raised` can only be reached when the loops around `trained` have ended."""
    for (code, line), (other, raised_line) in zip(trained, raised):
        loops = _loops_around(code, line)
        if other is not code or (loops and line == raised_line):
            return False
        if line != raised_line:
            return raised_line > max([line, *loops])
    return False


def _note(watch: Watch, tensors: Any, options: dict[str, Any]) -> None:
    frame: FrameType | None = sys._getframe(1)
    stack: Stack = []
    while frame is not None:
        if _is_own(frame.f_code):
            stack.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    watch.memory[_LAST] = stack[::-1]


def _is_own(code: CodeType) -> bool:
    if code not in _own:
        _own[code] = is_user_code(code.co_filename)
    return _own[code]


def _loops_around(code: CodeType, line: int) -> list[int]:
    """The last line of each loop of a function that a line of it lies in."""
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)))
    return [
        node.end_lineno or 0 for node in loops if code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
    ]
