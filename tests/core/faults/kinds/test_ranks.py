"""Test the effects of faults of single ranks."""

from __future__ import annotations

import pytest

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.errors import SpecError
from tests.builders import a_plan

RANK_KINDS = [*(kind for kind in KINDS if kind.startswith("rank-")), "flip-bits"]
SURVIVED = ["rank-stop", "rank-hang", "rank-lock-gil", "rank-files-full", "flip-bits"]


def effect_of(kind: str, rank: int, ranks: dict[int, str] | None = None) -> Effect:
    """Return the effect in a run of three nodes, of which node-1 is gone."""
    current = ranks or {0: "node-0", 1: "node-2"}
    run = RunSnapshot(plan=a_plan(nodes=3), running=("node-0", "node-2"), ranks=current)
    return KINDS[kind].effect(Fault(kind=kind, rank=rank), run)


@pytest.mark.parametrize("kind", RANK_KINDS)
def test_a_rank_fault_is_a_command_for_the_node_of_the_current_round(kind: str) -> None:
    """Rank 1 started on node-1 and is on node-2 now."""
    effect = effect_of(kind, 1)
    (command,) = effect.apply

    assert isinstance(command, AgentCommand)
    assert (command.node, command.values["rank"]) == ("node-2", 1)
    assert effect.text.startswith("rank 1 on node-2 ")


@pytest.mark.parametrize("kind", RANK_KINDS)
def test_a_fault_that_the_rank_survives_is_reverted(kind: str) -> None:
    effect = effect_of(kind, 0)
    (apply,) = effect.apply

    assert isinstance(apply, AgentCommand)
    if kind in SURVIVED:
        undo = AgentCommand(node=apply.node, name=apply.name, values=apply.values, on=False)
        assert (effect.lasts, effect.loses, effect.revert) == (True, (), (undo,))
    else:
        assert (effect.lasts, effect.loses, effect.revert) == (False, ("node-0",), ())


def test_a_rank_that_is_gone_is_refused() -> None:
    with pytest.raises(SpecError, match="rank 2 is not running: the current round of 'demo' has ranks 0 to 1"):
        effect_of("rank-kill", 2)
    with pytest.raises(SpecError, match="node-1 of the run 'demo' is not running"):
        effect_of("rank-kill", 1, ranks={1: "node-1"})
