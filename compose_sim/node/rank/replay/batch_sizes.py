"""Multiply the batch sizes that a script itself sets, so that one rank may make the batches of all ranks together.

A script that draws `batch_size * world_size` samples draws fewer of them at world size 1. Whether it then trains on the samples of all
ranks is not taken for granted: the hashes of what the models are given tell it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

_OF_A_RANK = r"(?:rank|gpu|device|worker|process|node|replica)"
_BATCH_SIZE = re.compile(
    rf"(?:(?:per_{_OF_A_RANK}|{_OF_A_RANK}|micro|mini|train|training|local|own)_?)*(?:batch(?:_?size)?|bsz?|mbs)(?:_?per_{_OF_A_RANK})?"
    rf"|(?:n|rows|samples|size)_?per_{_OF_A_RANK}|per_{_OF_A_RANK}|b",
    re.IGNORECASE,
)


def multiplied(source: bytes, path: str, times: int) -> ast.Module:
    """Return the script with each whole number that names a batch size `times` as large. Raises SyntaxError."""
    tree: ast.Module = _Multiplier(times).visit(ast.parse(source, path))
    return tree


def multiplied_arguments(words: Sequence[str], times: int) -> list[str]:
    """Return the script's arguments with each batch size `times` as large: `--batch-size 8` or `--batch-size=8`."""
    found, before = [], ""
    for word in words:
        option, equals, value = word.partition("=")
        name, number = (option, value) if equals else (before, word)
        is_size = name.startswith("-") and number.isdecimal() and _is_batch_size(_option(name))
        found.append(f"{option}{equals}" * bool(equals) + str(int(number) * times) if is_size else word)
        before = word
    return found


def _option(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


def _is_batch_size(name: str) -> bool:
    return bool(_BATCH_SIZE.fullmatch(name))


class _Multiplier(ast.NodeTransformer):
    """Assignments, defaults of parameters and of options, keyword arguments, and values of dictionaries."""

    def __init__(self, times: int) -> None:
        self._times = times

    def _change(self, name: str, value: Any) -> None:
        if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0 and _is_batch_size(name):
            value.value *= self._times

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for one, value in pairs:
                self._change(_name_of(one), value)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self._change(_name_of(node.target), node.value)
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        with_defaults = [*node.posonlyargs, *node.args][-len(node.defaults) or None :]
        for argument, value in [*zip(with_defaults, node.defaults), *zip(node.kwonlyargs, node.kw_defaults)]:
            self._change(argument.arg, value)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        option = node.args[0] if node.args else None
        if isinstance(option, ast.Constant) and isinstance(option.value, str) and _name_of(node.func) == "add_argument":
            for keyword in node.keywords:
                if keyword.arg == "default":
                    self._change(_option(option.value), keyword.value)
        for keyword in node.keywords:
            self._change(keyword.arg or "", keyword.value)
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        for key, value in zip(node.keys, node.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._change(key.value, value)
        return self.generic_visit(node)


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
