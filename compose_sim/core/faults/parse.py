"""Parse a fault from the name of its kind, its arguments and its options, for one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import FaultKind, flag_of
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.plan.model import Plan, node_name
from compose_sim.core.text import did_you_mean
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import find

GROUP = "composesim.faults"


def find_kind(name: str, *, engine: str = "") -> FaultKind:
    """Return the kind of this name; SpecError if there is none, or if the engine does not support it."""
    kind = KINDS.get(name) or _installed_kind(name)
    if kind is None:
        raise SpecError(f"unknown fault '{name}'{did_you_mean(name, KINDS)}", hint="composesim fault list")
    if engine and engine not in kind.engines:
        raise SpecError(
            f"'{name}' is not supported on the {engine} engine, whose nodes share the host",
            hint="composesim up --engine docker …",
        )
    return kind


def _installed_kind(name: str) -> FaultKind | None:
    """Return the kind that another distribution registers; SpecError if it registers something else."""
    feature = find(GROUP, name)
    if feature is None:
        return None
    kind = feature.load()
    if not isinstance(kind, FaultKind) or kind.name != name:
        raise SpecError(f"{feature.described} is invalid: it is not the FaultKind '{name}'")
    return kind


def parse_fault(
    name: str, arguments: Sequence[str], options: Mapping[str, Any], *, plan: Plan, for_s: float | None = None
) -> Fault:
    """
    Return the fault of this kind on the nodes or the rank that the arguments name.

    `options` holds texts, or True for a flag. An option that is missing or None gets the default of the kind.
    """
    kind = find_kind(name, engine=plan.engine)
    nodes, rank, groups = _targets(kind, arguments, plan)
    return Fault(kind=name, nodes=nodes, rank=rank, options={**_options(kind, options), **groups}, for_s=for_s)


def _targets(
    kind: FaultKind, arguments: Sequence[str], plan: Plan
) -> tuple[tuple[str, ...], int | None, dict[str, Any]]:
    if kind.target == "none":
        if arguments:
            raise SpecError(f"'{kind.name}' takes no argument, but got '{arguments[0]}'", hint=_help(kind))
        return (), None, {}
    if not all(text.strip(",") for text in arguments or ("",)):
        raise SpecError(f"'{kind.name}' needs an argument: {kind.usage}", hint=_help(kind))
    if kind.target == "rank":
        ranks = [rank for node in plan.nodes for rank in node.ranks]
        text = " ".join(arguments)
        if not (text.isascii() and text.isdigit() and int(text) in ranks):
            existing = f"ranks 0 to {ranks[-1]}" if ranks[1:] else "rank 0"
            raise SpecError(f"'{text}' is not a rank of the run '{plan.run}', which has {existing}")
        return (), int(text), {}
    names = [node.name for node in plan.nodes]
    groups = [[node_name(word, names, run=plan.run) for word in text.split(",") if word] for text in arguments]
    nodes = tuple(dict.fromkeys(node for group in groups for node in group))
    return nodes, None, {"groups": groups} if kind.target == "groups" else {}


def _options(kind: FaultKind, given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        if key not in kind.options and value is not None:
            raise SpecError(f"'{kind.name}' has no option '{key}'", hint=_help(kind))
    values = {}
    for key, option in kind.options.items():
        text = given.get(key)
        if text is None and option.default is ...:
            raise SpecError(f"'{kind.name}' needs {flag_of(key)}", hint=_help(kind))
        try:
            values[key] = option.default if text is None else option.parse(text if option.parse is bool else str(text))
        except ValueError as error:
            raise SpecError(f"{flag_of(key)} of '{kind.name}': {error}", hint=_help(kind)) from None
    return values


def _help(kind: FaultKind) -> str:
    return f"composesim fault {kind.name} --help"
