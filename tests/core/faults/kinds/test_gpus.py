"""A GPU fault is a command for the first rank of the node, which is lost by it."""

from __future__ import annotations

import pytest

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.errors import SpecError
from tests.builders import a_plan


def effect_on(*nodes: str, fault: str = "gpu-error", **options: object) -> Effect:
    """Return the effect in a run of two nodes with two ranks each, of which node-2 has none."""
    ranks = {0: "node-0", 1: "node-0", 2: "node-1", 3: "node-1"}
    run = RunSnapshot(plan=a_plan(nodes=3), running=("node-0", "node-1", "node-2"), ranks=ranks)
    return KINDS[fault].effect(Fault(kind=fault, nodes=nodes, options=options), run)


def commands_of(acts: tuple[object, ...]) -> list[tuple[str, dict[str, object]]]:
    return [(each.node, dict(each.values)) for each in acts if isinstance(each, AgentCommand)]


def test_the_first_rank_of_each_node_gets_the_error() -> None:
    effect = effect_on("node-1", "node-0", kind="ecc")

    assert commands_of(effect.apply) == [
        ("node-1", {"rank": 2, "action": "gpu-error", "kind": "ecc"}),
        ("node-0", {"rank": 0, "action": "gpu-error", "kind": "ecc"}),
    ]
    assert (effect.loses, effect.lasts) == (("node-1", "node-0"), False)


def test_a_node_without_ranks_is_refused() -> None:
    with pytest.raises(SpecError, match="no rank is running on node-2"):
        effect_on("node-2", kind="ecc")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'fire' is none of xid, ecc, lost, oom"):
        KINDS["gpu-error"].options["kind"].parse("fire")


def test_a_slow_gpu_slows_the_first_rank_until_it_is_healed() -> None:
    effect = effect_on("node-1", fault="gpu-slow", by=3.0)

    assert commands_of(effect.apply) == [("node-1", {"rank": 2, "action": "gpu-slow", "by": 3.0})]
    assert commands_of(effect.revert) == commands_of(effect.apply)
    assert ([each.on for each in (*effect.apply, *effect.revert)], effect.loses) == ([True, False], ())


@pytest.mark.parametrize("text", ["1", "0.5", "101", "nan", "fast"])
def test_a_factor_must_slow_down(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        KINDS["gpu-slow"].options["by"].parse(text)
