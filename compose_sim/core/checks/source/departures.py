"""Say which ranks left a loop that others are still in, after which step and by which line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.source.hints import parsed
from compose_sim.core.checks.wording import ranks_text
from compose_sim.core.events.observations import RankObserved
from compose_sim.core.units import format_count
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective, DdpForward
from compose_sim.node.records.record import Place
from compose_sim.node.records.script import ScriptEnd

FIX = (
    "Let all ranks decide alike: reduce or broadcast what decides (`dist.all_reduce(flag)`, `dist.broadcast(flag, src=0)`), then leave "
    "the loop or skip the batch on every rank."
)
_MOST_EXITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Ranks that left a loop, and those that go on."""

    left: tuple[int, ...]
    text: str
    at: Place | None


def departure(case: Case) -> Departure | None:
    """Return how some ranks left the loop in which others wait; None if the sources do not show it."""
    places = {rank.rank: _places(case, rank) for rank in case.observed}
    steps = {rank.rank: sum(1 for _ in rank.of(OptimizerStep)) for rank in case.observed}
    seen = sorted({place for mine in places.values() for place in mine[:1]})
    if all(
        len(mine) != 1 for mine in places.values()
    ):  # of all ranks that still run, it is known who called what waits
        seen += sorted({place for mine in places.values() for place in mine[1:]} - set(seen))
    for file, line in seen:
        tree = parsed(source_of(case, file))
        for loop in _loops(tree, line) if tree else ():
            inside = [
                rank for rank, mine in places.items() if any(at[0] == file and _holds(loop, at[1]) for at in mine)
            ]
            left = [rank for rank in places if rank not in inside]
            if inside and left:
                waiting = next((at[1] for rank in inside for at in places[rank] if at[0] == file), line)
                return _departure(file, loop, waiting, left, inside, steps)
    return None


def skipping_line(case: Case, at: Place) -> Place | None:
    """Return the only `continue` that may skip this line in the loop around it."""
    tree = parsed(source_of(case, at[0]))
    loops = _loops(tree, at[1]) if tree else []
    lines = [line for line, word in _exits(loops[-1]) if word == "continue" and line < at[1]] if loops else []
    return (at[0], lines[0]) if len(lines) == 1 else None


def source_of(case: Case, file: str) -> str:
    """Return the text of a file of the script, by the path that it has on the nodes."""
    return next((text for name, text in case.sources.items() if f"/{file}".endswith(f"/{name}")), "")


def _departure(
    file: str, loop: ast.stmt, line: int, left: Sequence[int], inside: Sequence[int], steps: Mapping[int, int]
) -> Departure | None:
    made, going = {steps[rank] for rank in left}, {steps[rank] for rank in inside}
    if not max(made) or len(made) > 1:
        return None
    exits = sorted(set(_exits(loop))) or sorted(set(_exits(loop, nested=None)))
    named = " or ".join(f"`{word}` in line {at}" for at, word in exits[:_MOST_EXITS])
    verb = "skipped part of" if {word for _, word in exits} == {"continue"} else "left"
    by = f" by the {named}" if named else ""
    text = (
        f"{ranks_text(left)} {verb} the loop of line {loop.lineno}{by}, and made {format_count(made.pop(), 'step')}; "
        f"{ranks_text(inside)} made {max(going)} and wait{'s'[: len(inside) == 1]} in line {line}"
    )
    return Departure(
        left=tuple(sorted(left)), text=text, at=(file, exits[0][0]) if len(exits) == 1 else (file, loop.lineno)
    )


def _places(case: Case, rank: RankObserved) -> list[Place]:
    """Return where a rank stands: its innermost line first. It is empty if the script has ended."""
    standing = next((each for each in case.stalls if each.rank == rank.rank), None)
    if standing is not None and (standing.has_left or standing.script_ended):
        return []
    if standing is not None and standing.frames:
        spot = [(standing.spot.file, standing.spot.line)] if standing.spot else []
        return spot + [(file, line) for file, line, _ in standing.frames]
    end = rank.last(ScriptEnd)
    if end is not None and not end.raised:
        return []
    last = rank.last(Collective, DdpForward, OptimizerStep)
    at = getattr(last, "at", None)
    return [at] if at else []


def _loops(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Return the loops around a line, the outermost first."""
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)) and _holds(node, line)]
    return sorted(found, key=lambda node: node.lineno)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _exits(loop: ast.AST, *, nested: bool | None = False) -> Iterator[tuple[int, str]]:
    """Yield the statements that leave a loop, or skip the rest of one pass; with None, those of the loops in it as well."""
    for node in ast.iter_child_nodes(loop):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return):
            yield node.lineno, "return"
        elif isinstance(node, (ast.Break, ast.Continue)) and not nested:
            yield node.lineno, "break" if isinstance(node, ast.Break) else "continue"
        yield from _exits(node, nested=None if nested is None else nested or isinstance(node, (ast.For, ast.While)))
