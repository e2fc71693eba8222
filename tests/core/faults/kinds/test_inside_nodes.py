"""What faults from inside a node come to: an order for the right node, what undoes it, and words where it makes no sense."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compose_sim.core.faults import KINDS, Lowered, Order, Scene, lasts, load_kind, target_of
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.parse import read_fault
from compose_sim.errors import SpecError
from tests.builders import ROOT, a_plan


def lowered(
    kind: str, *, fault: dict[str, Any] | None = None, ranks: dict[int, str] | None = None, **spec: Any
) -> Lowered:
    """The fault in a run of three nodes, of which node-1 has gone."""
    there = ranks or {0: "node-0", 1: "node-2"}
    scene = Scene(plan=a_plan(nodes=3, **spec), running=("node-0", "node-2"), ranks=there)
    return load_kind(kind).lower(Fault(kind=kind, **(fault or {})), scene)


RANK_KINDS = [kind for kind in KINDS if kind.startswith("rank-")]
ENDED = ["rank-raise", "rank-exit", "rank-segfault", "rank-abort", "rank-kill", "rank-term", "rank-interrupt"]


@pytest.mark.parametrize("kind", RANK_KINDS)
def test_a_ranks_fault_is_an_order_for_the_node_that_has_it_now(kind: str) -> None:
    """Rank 1 began on node-1; in this round it is on node-2."""
    made = lowered(kind, fault={"rank": 1})
    (order,) = made.do

    assert isinstance(order, Order)
    assert (order.node, order.values["rank"]) == ("node-2", 1)
    assert made.text.startswith("rank 1 on node-2 ")
    assert target_of(load_kind(kind)) == "rank"


@pytest.mark.parametrize("kind", RANK_KINDS)
def test_what_ends_a_rank_is_over_and_what_holds_it_is_undone(kind: str) -> None:
    made = lowered(kind, fault={"rank": 0})

    if kind in ENDED:
        assert (made.lasts, made.loses, made.undo) == (False, ("node-0",), ())
    else:
        (do,), (undo,) = made.do, made.undo
        assert isinstance(do, Order)
        assert undo == Order(node=do.node, name=do.name, values=do.values, on=False)
        assert (made.lasts, made.loses) == (True, ())


def test_a_rank_that_has_gone_is_refused() -> None:
    with pytest.raises(SpecError, match="rank 2 does not run now: this round of 'demo' has ranks 0 to 1"):
        lowered("rank-kill", fault={"rank": 2})
    with pytest.raises(SpecError, match="node-1 of the run 'demo' is not running"):
        lowered("rank-kill", fault={"rank": 1}, ranks={1: "node-1"})


def test_memory_is_only_used_up_where_it_has_a_limit() -> None:
    made = lowered("memory", fault={"nodes": ("node-0",)}, memory="1g")

    assert made.do == (Order(node="node-0", name="memory"),)
    assert (made.lasts, made.loses) == (False, ("node-0",))
    with pytest.raises(SpecError, match="node-0 has no memory limit of its own") as caught:
        lowered("memory", fault={"nodes": ("node-0",)})
    assert caught.value.hint == "composesim up --memory 1g …"


def test_only_a_disk_of_the_nodes_own_is_filled() -> None:
    made = lowered("disk-full", fault={"nodes": ("node-0", "node-2")}, scratch="64m")

    assert made.undo == tuple(Order(node=node, name="disk_full", on=False) for node in ("node-0", "node-2"))
    with pytest.raises(SpecError, match="no node has a disk of its own, and this machine's is never filled"):
        lowered("disk-full", fault={"nodes": ("node-0",)})


@pytest.mark.parametrize("kind", ["memory", "disk-full", "processes-full"])
def test_what_takes_from_the_machine_needs_containers(kind: str) -> None:
    assert load_kind(kind).ENGINES == ("docker",)
    with pytest.raises(SpecError, match="node-1 of the run 'demo' is not running"):
        lowered(kind, fault={"nodes": ("node-1",)}, memory="1g", scratch="64m")


def test_a_checkpoint_is_broken_by_a_node_that_runs() -> None:
    made = lowered("corrupt-checkpoint", fault={"options": {"how": "flip"}})

    assert made.do == (Order(node="node-0", name="corrupt_checkpoint", values={"how": "flip"}),)
    assert made.undo == (Order(node="node-0", name="corrupt_checkpoint", values={"how": "flip"}, on=False),)


def test_every_kind_says_what_it_is() -> None:
    """At least twenty of them; each with a line for `fault list`, and engines that there are."""
    kinds = {name: load_kind(name) for name in KINDS}

    assert len(kinds) >= 20
    assert [name for name, kind in kinds.items() if not kind.SUMMARY.endswith(".") or len(kind.SUMMARY) > 90] == []
    assert {engine for kind in kinds.values() for engine in kind.ENGINES} == {"docker", "local"}


def test_a_kind_lasts_if_there_is_anything_to_heal() -> None:
    plan = a_plan(nodes=3, memory="1g", scratch="64m")
    scene = Scene(plan=plan, running=("node-0", "node-1", "node-2"), ranks={0: "node-0"})
    words = {"nodes": ["0"], "rank": ["0"], "groups": ["0", "1,2"], "none": []}
    needed = {
        "cpu": {"limit": "0.5"},
        "slow-link": {"rate": "1mbit"},
        "loss": {"rate": "5%"},
        "delay": {"time": "5ms"},
    }
    kinds = {name: load_kind(name) for name in KINDS}
    faults = {
        name: read_fault(name, words[target_of(kind)], needed.get(name, {}), plan=plan) for name, kind in kinds.items()
    }

    healed = {name for name, kind in kinds.items() if kind.lower(faults[name], scene).lasts}
    assert healed == {name for name, kind in kinds.items() if lasts(kind)}
    assert set(KINDS) - healed == {*ENDED, "restart", "memory"}


def test_every_kind_has_a_row_in_the_document() -> None:
    """With the engines that it has."""
    rows = re.findall(r"^\| (`.*?) \|.*?\| (docker|both) \|", (ROOT / "docs" / "faults.md").read_text(), re.MULTILINE)
    told = {word: engines for cell, engines in rows for word in re.findall(r"`([a-z-]+)", cell)}

    assert told == {name: "both" if len(load_kind(name).ENGINES) == 2 else "docker" for name in KINDS}
