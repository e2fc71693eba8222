"""Test which interventions are valid while faults are active, and what they mean."""

from __future__ import annotations

import pytest

from compose_sim.core.faults.active import compile_fault, faults_to_heal, healed_by_start, scaled_nodes
from compose_sim.core.faults.commands import (
    Fault,
    Heal,
    Intervention,
    Scale,
    SetLinks,
    intervention_from_dict,
    intervention_to_dict,
)
from compose_sim.core.faults.kind import Effect, RunSnapshot
from compose_sim.errors import SpecError
from tests.builders import a_plan

PLAN = a_plan(nodes=4)
NAMES = tuple(node.name for node in PLAN.nodes)
RUN = RunSnapshot(plan=PLAN, running=NAMES, ranks=dict(enumerate(NAMES)))
KILL, PAUSE = Fault(kind="kill", nodes=("node-1", "node-2")), Fault(kind="pause", nodes=("node-1",))


def active(*faults: Fault) -> dict[str, Effect]:
    """Return the effects of these faults, with the ids f0, f1, …"""
    return {f"f{number}": compile_fault(fault, RUN, {}) for number, fault in enumerate(faults)}


def test_the_same_fault_twice_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        compile_fault(Fault(kind="kill", nodes=("node-2",)), RUN, active(KILL))

    assert caught.value.message == "f0 is already active: node-1, node-2 killed"
    assert caught.value.hint == "composesim heal f0"
    assert compile_fault(Fault(kind="kill", nodes=("node-3",)), RUN, active(KILL)).loses == ("node-3",)
    assert compile_fault(PAUSE, RUN, active(KILL)).loses == ("node-1",)


def test_a_cpu_limit_may_follow_another_one() -> None:
    limited = active(Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.5}))

    assert compile_fault(Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.2}), RUN, limited).apply


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(kind="kill", nodes=("node-9",)), "there is no node 'node-9' in the run 'demo'"),
        (Fault(kind="restart", nodes=("master",)), "there is no node 'master' in the run 'demo'"),
        (Fault(kind="explode", nodes=("node-1",)), "unknown fault 'explode'"),
        (Fault(kind="restart", nodes=("node-1",), for_s=3.0), "'restart' is instantaneous; --for does not apply"),
    ],
)
def test_an_invalid_fault_is_refused(fault: Fault, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_fault(fault, RUN, {})

    assert message in caught.value.message


def test_a_frozen_node_cannot_execute_a_fault() -> None:
    frozen = active(PAUSE, Fault(kind="stop", nodes=("node-3",)))

    for rank, why in ((1, "f0 is active (node-1 frozen)"), (3, "f1 is active (node-3 stopped)")):
        with pytest.raises(SpecError) as caught:
            compile_fault(Fault(kind="rank-raise", rank=rank), RUN, frozen)
        assert caught.value.message == f"node-{rank} cannot execute this fault while {why}"
    assert compile_fault(Fault(kind="rank-raise", rank=2), RUN, frozen).apply


def test_a_heal_is_of_one_fault_of_a_node_or_of_all() -> None:
    faults = active(KILL, PAUSE, Fault(kind="stop", nodes=("node-3",)))

    assert faults_to_heal(Heal(target="f1"), faults, PLAN) == ("f1",)
    assert faults_to_heal(Heal(target="node-1"), faults, PLAN) == ("f0", "f1")
    assert faults_to_heal(Heal(), faults, PLAN) == ("f0", "f1", "f2")


def test_a_rank_fault_is_healed_with_its_node() -> None:
    faults = active(Fault(kind="rank-stop", rank=2))

    assert faults_to_heal(Heal(target="node-2"), faults, PLAN) == ("f0",)
    with pytest.raises(SpecError, match="node-1 has no active faults"):
        faults_to_heal(Heal(target="node-1"), faults, PLAN)


@pytest.mark.parametrize(
    ("target", "message"),
    [("node-0", "node-0 has no active faults"), ("f7", "there is no active fault 'f7'")],
)
def test_a_heal_of_nothing_is_refused_and_lists_the_active_faults(target: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        faults_to_heal(Heal(target=target), active(PAUSE), PLAN)

    assert (caught.value.message, caught.value.evidence) == (message, "active: f0 (node-1 frozen)")
    with pytest.raises(SpecError, match="the run 'demo' has no active faults"):
        faults_to_heal(Heal(), {}, PLAN)


def test_a_fault_is_healed_once_all_nodes_that_it_killed_run_again() -> None:
    faults = active(KILL, PAUSE)

    assert healed_by_start("node-1", faults, {"node-0"}) == ()
    assert healed_by_start("node-1", faults, {"node-0", "node-2"}) == ("f0",)
    assert healed_by_start("node-3", faults, NAMES) == ()


def test_scaling_removes_the_last_nodes_and_adds_the_first_absent_ones() -> None:
    plan = a_plan(elastic="2:4", nodes=3)

    assert scaled_nodes(Scale(nodes=2), plan, NAMES[:3]) == NAMES[:2]
    assert scaled_nodes(Scale(nodes=4), plan, NAMES[:2]) == NAMES
    assert scaled_nodes(Scale(nodes=3), plan, ("node-0", "node-3")) == ("node-0", "node-1", "node-3")


def test_scaling_outside_the_range_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot scale the run 'demo' to 5 nodes: its range is 2:4"):
        scaled_nodes(Scale(nodes=5), a_plan(elastic="2:4"), NAMES)
    with pytest.raises(SpecError, match="the run 'demo' is not elastic"):
        scaled_nodes(Scale(nodes=3), PLAN, NAMES)


@pytest.mark.parametrize(
    "intervention",
    [
        Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.2, "groups": [["a"], ["b"]]}, for_s=2.5),
        Fault(kind="rank-raise", rank=0),
        Heal(target="node-1"),
        SetLinks(links=("1gbit", "node-0=10mbit")),
        Scale(nodes=3),
    ],
)
def test_an_intervention_survives_serialization(intervention: Intervention) -> None:
    assert intervention_from_dict(intervention_to_dict(intervention)) == intervention
