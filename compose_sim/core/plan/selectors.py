"""Select nodes and ranks of a plan, as in `--node 1 --rank 3`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.errors import SpecError


def node_name(text: str, names: Collection[str], *, run: str) -> str:
    """Return `node-1` for `node-1` or `1`; raise SpecError that lists the nodes for any other text."""
    name = f"node-{int(text)}" if text.isascii() and text.isdigit() else text
    if name not in names:
        raise SpecError(
            f"there is no node '{text}' in the run '{run}': it has {_listed(list(names))}", hint="composesim ps"
        )
    return name


def chosen_ranks(plan: Plan, *, nodes: Sequence[str], ranks: Sequence[str]) -> set[tuple[str, int]]:
    """Return the (node, rank) pairs of the named ranks on the named nodes. Nothing named selects all."""
    by_name = {node.name: node for node in plan.nodes}
    on = [by_name[node_name(text, by_name, run=plan.run)] for text in nodes] or list(plan.nodes)
    existing = {rank: node for node in on for rank in node.ranks}
    for text in ranks:
        if not (text.isascii() and text.isdigit() and int(text) in existing):
            where = f"in the run '{plan.run}'" if on == [*plan.nodes] else f"on {_listed([each.name for each in on])}"
            raise SpecError(f"there is no rank '{text}' {where}: {_ranks(on)}", hint="composesim ps")
    wanted = [int(text) for text in ranks] or list(existing)
    return {(existing[rank].name, rank) for rank in wanted}


def one_rank(plan: Plan, text: str | None) -> tuple[str, int]:
    """Return the node and the number of the named rank. Nothing named means the only rank; raise SpecError if there are several."""
    chosen = chosen_ranks(plan, nodes=(), ranks=[text] if text is not None else [])
    if len(chosen) > 1:
        raise SpecError(f"--rank is required: {_ranks(list(plan.nodes))}", hint="composesim attach --rank 0")
    return chosen.pop()


def _ranks(on: list[PlannedNode]) -> str:
    ranks = [str(rank) for node in on for rank in node.ranks]
    return f"there is only rank {ranks[0]}" if len(ranks) == 1 else f"there are ranks {_listed(ranks)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])}, … {names[-1]}"
