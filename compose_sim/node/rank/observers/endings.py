"""Record whether the training was over when the script raised, judging by the stack at the last backward pass."""

from __future__ import annotations

import ast
import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

from ...records.script import RaisedAfterTraining
from ...shared.frames import is_user_code
from ..context import RankContext
from ..torch_hooks import points

_LAST = "endings.last"
_SCRIPT_RUNNER = str(Path(__file__).parents[1] / "script_runner.py")  # what has called it is no user code
Stack = list[tuple[CodeType, int]]  # of user code, outermost first


def install() -> None:
    points.BACKWARD.subscribe(_note)


def end(context: RankContext) -> None:
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or _LAST not in context.memory:
        return
    raised: Stack = []
    traceback = error.__traceback__
    while traceback is not None:
        if is_user_code(traceback.tb_frame.f_code.co_filename):
            raised.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    if raised and is_behind(context.memory[_LAST], raised):
        context.note(RaisedAfterTraining((raised[-1][0].co_filename, raised[-1][1])))


def is_behind(trained: Stack, raised: Stack) -> bool:
    """Return whether `raised` can only be reached after the loops around `trained` have ended."""
    for (code, line), (other, raised_line) in zip(trained, raised):
        loops = _loops_around(code, line)
        if other is not code or (loops and line == raised_line):
            return False
        if line != raised_line:
            return raised_line > max([line, *loops])
    return False


def _note(context: RankContext, _: points.TorchCall) -> None:
    frame: FrameType | None = sys._getframe(1)
    stack: Stack = []
    while frame is not None and (code := frame.f_code).co_filename != _SCRIPT_RUNNER:
        if is_user_code(code.co_filename):
            stack.append((code, frame.f_lineno))
        frame = frame.f_back
    context.memory[_LAST] = stack[::-1]


def _loops_around(code: CodeType, line: int) -> list[int]:
    """Return the last line of each loop of a function around one of the lines."""
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)))
    return [
        node.end_lineno or 0 for node in loops if code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
    ]
