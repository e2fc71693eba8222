"""Which fault do a kind's name, some words and some options mean? Fault out, or words for the person on what is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from compose_sim.core.faults import KINDS, Kind, load_kind, options_of, target_of
from compose_sim.core.faults.commands import Fault
from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.selectors import node_name
from compose_sim.errors import SpecError


def kind_named(name: str) -> Kind:
    """The kind of that name; SpecError with the nearest one where there is none."""
    if name not in KINDS:
        near = get_close_matches(name, KINDS, 1)
        meant = f": '{near[0]}' was meant?" if near else ""
        raise SpecError(f"there is no kind of fault '{name}'{meant}", hint="composesim fault list")
    return load_kind(name)


def read_fault(
    name: str, words: Sequence[str], options: Mapping[str, Any], *, plan: Plan, for_s: float | None = None
) -> Fault:
    """
    The fault of kind `name` on what `words` name, for this plan.

    `options` holds texts, or True for a flag; those left out (or None) get the kind's own values.
    """
    kind = kind_named(name)
    if plan.engine not in kind.ENGINES:
        raise SpecError(
            f"'{name}' cannot be done on the {plan.engine} engine, whose nodes share this machine",
            hint="composesim up --engine docker …",
        )
    nodes, rank, groups = _targets(name, target_of(kind), words, plan)
    return Fault(kind=name, nodes=nodes, rank=rank, options={**_options(name, kind, options), **groups}, for_s=for_s)


def _targets(
    name: str, target: str, words: Sequence[str], plan: Plan
) -> tuple[tuple[str, ...], int | None, dict[str, Any]]:
    if target == "none":
        if words:
            raise SpecError(f"'{name}' is done to no node in particular: '{words[0]}' is too much", hint=_help(name))
        return (), None, {}
    if not words:
        raise SpecError(f"'{name}' must be told what to break: {KINDS[name]}", hint=_help(name))
    if target == "rank":
        ranks = [rank for node in plan.nodes for rank in node.ranks]
        if len(words) > 1 or not (words[0].isascii() and words[0].isdigit() and int(words[0]) in ranks):
            there = f"ranks 0 to {ranks[-1]}" if ranks[1:] else "rank 0"
            raise SpecError(f"'{' '.join(words)}' is not a rank of the run '{plan.run}': it has {there}")
        return (), int(words[0]), {}
    names = [node.name for node in plan.nodes]
    if target == "groups":
        groups = [[node_name(word, names, run=plan.run) for word in group.split(",") if word] for group in words]
        return tuple(dict.fromkeys(node for group in groups for node in group)), None, {"groups": groups}
    chosen = (node_name(word, names, run=plan.run) for text in words for word in text.split(",") if word)
    return tuple(dict.fromkeys(chosen)), None, {}


def _options(name: str, kind: Kind, given: Mapping[str, Any]) -> dict[str, Any]:
    known, values = options_of(kind), {}
    for key in given:
        if key not in known and given[key] is not None:
            raise SpecError(f"'{name}' has no option '{key}'", hint=_help(name))
    for key, (parse, default, _) in known.items():
        text = given.get(key)
        if text is None and default is ...:
            raise SpecError(f"'{name}' needs --{key.replace('_', '-')}", hint=_help(name))
        try:
            values[key] = default if text is None else bool(text) if parse is bool else parse(str(text))
        except ValueError as error:
            raise SpecError(f"--{key.replace('_', '-')} of '{name}': {error}", hint=_help(name)) from None
    return values


def _help(name: str) -> str:
    return f"composesim fault {name} --help"
