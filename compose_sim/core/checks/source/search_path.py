"""Find the folders that a script adds to `sys.path`, as far as its text shows."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from compose_sim.core.checks.source.hints import parsed

_MOST_PARTS = 20  # of the expression of one folder
_OF_ARGUMENT = ("Path", "PurePath", "str", "fspath", "abspath", "realpath", "normpath", "expanduser")


def added_folders(text: str, file: str) -> list[str]:
    """Return the arguments of `sys.path.insert` and `sys.path.append` in this file, relative ones below the working directory."""
    found: list[str] = []
    for node in ast.walk(parsed(text) or ast.Module([], [])):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func) in ("sys.path.insert", "sys.path.append"):
            folder = _value(node.args[-1], file, _MOST_PARTS)
            found += [folder] if folder else []
    return list(dict.fromkeys(found))


def _value(node: ast.expr, file: str, depth: int) -> str:
    """Return the path that an expression of constants and `__file__` stands for; nothing for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id == "__file__":
        return file
    if not depth:
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined([node.left, node.right], file, depth)
    if isinstance(node, ast.Attribute) and node.attr == "parent":
        return _parent(_value(node.value, file, depth - 1))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        path = _value(node.value.value, file, depth - 1)
        for _ in range(number + 1 if isinstance(number, int) and 0 <= number < _MOST_PARTS else 0):
            path = _parent(path)
        return path if isinstance(number, int) else ""
    return _called(node, file, depth) if isinstance(node, ast.Call) else ""


def _called(node: ast.Call, file: str, depth: int) -> str:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("resolve", "absolute", "as_posix") and isinstance(node.func, ast.Attribute):
        return _value(node.func.value, file, depth - 1)
    if name == "join":
        return _joined(node.args, file, depth)
    argument = _value(node.args[0], file, depth - 1) if len(node.args) == 1 else ""
    return _parent(argument) if name == "dirname" else argument if name in _OF_ARGUMENT else ""


def _joined(nodes: list[ast.expr], file: str, depth: int) -> str:
    parts = [_value(each, file, depth - 1) for each in nodes]
    return str(PurePosixPath(*parts)) if parts and all(parts) else ""


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent) if path else ""
