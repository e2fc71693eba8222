"""Test the effects of faults of whole nodes, and of the fault that corrupts a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, LimitCpus, Pause, RunSnapshot, Signal, Start
from compose_sim.core.faults.kinds import KINDS
from compose_sim.errors import SpecError
from tests.builders import a_plan


def effect_of(kind: str, *nodes: str, spec: dict[str, Any] | None = None, **options: Any) -> Effect:
    """Return the effect in a run of three nodes, of which node-2 is gone."""
    run = RunSnapshot(plan=a_plan(nodes=3, **(spec or {})), running=("node-0", "node-1"))
    return KINDS[kind].effect(Fault(kind=kind, nodes=nodes, options=options), run)


def test_kill_and_term_are_reverted_by_a_start() -> None:
    for kind, name in (("kill", "KILL"), ("term", "TERM")):
        effect = effect_of(kind, "node-0", "node-1")
        assert effect.apply == (Signal(node="node-0", name=name), Signal(node="node-1", name=name))
        assert effect.revert == (Start(node="node-0"), Start(node="node-1"))
        assert (effect.loses, effect.lasts) == (("node-0", "node-1"), True)


def test_stop_and_pause_are_reverted_by_letting_the_node_continue() -> None:
    assert effect_of("stop", "node-1").revert == (Signal(node="node-1", name="CONT"),)
    assert effect_of("pause", "node-1").revert == (Pause(node="node-1", on=False),)
    assert effect_of("stop", "node-1").loses == effect_of("pause", "node-1").loses == ("node-1",)


def test_restart_is_instantaneous_and_only_kills_running_nodes() -> None:
    effect = effect_of("restart", "node-1", "node-2")

    assert effect.apply == (Signal(node="node-1", name="KILL"), Start(node="node-1"), Start(node="node-2"))
    assert (effect.revert, effect.lasts) == ((), False)


def test_a_cpu_limit_loses_no_node() -> None:
    effect = effect_of("cpu", "node-1", limit=0.2)

    assert effect.apply == (LimitCpus(node="node-1", cpus=0.2),)
    assert effect.revert == (LimitCpus(node="node-1", cpus=None),)
    assert (effect.text, effect.loses) == ("node-1 limited to 0.2 CPUs", ())


def test_memory_needs_a_limit() -> None:
    effect = effect_of("memory", "node-0", spec={"memory": "1g"})

    assert effect.apply == (AgentCommand(node="node-0", name="memory"),)
    assert (effect.lasts, effect.loses) == (False, ("node-0",))
    with pytest.raises(SpecError, match="node-0 has no memory limit") as caught:
        effect_of("memory", "node-0")
    assert caught.value.hint == "composesim up --memory 1g …"


def test_disk_full_needs_a_scratch_disk() -> None:
    effect = effect_of("disk-full", "node-0", "node-1", spec={"scratch": "64m"})

    assert effect.revert == tuple(AgentCommand(node=node, name="disk_full", on=False) for node in ("node-0", "node-1"))
    with pytest.raises(SpecError, match="the nodes have no scratch disk"):
        effect_of("disk-full", "node-0")


@pytest.mark.parametrize("kind", ["kill", "term", "stop", "pause", "memory", "disk-full", "processes-full"])
def test_a_node_that_is_not_running_is_refused(kind: str) -> None:
    with pytest.raises(SpecError, match="node-2 of the run 'demo' is not running"):
        effect_of(kind, "node-1", "node-2", spec={"memory": "1g", "scratch": "64m"})


def test_a_running_node_corrupts_the_checkpoint() -> None:
    effect = effect_of("corrupt-checkpoint", how="flip")

    assert effect.apply == (AgentCommand(node="node-0", name="corrupt_checkpoint", values={"how": "flip"}),)
    assert effect.revert == (AgentCommand(node="node-0", name="corrupt_checkpoint", values={"how": "flip"}, on=False),)
