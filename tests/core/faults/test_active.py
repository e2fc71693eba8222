"""Which interventions make sense as a run stands?"""

from __future__ import annotations

import pytest

from compose_sim.core.faults import Scene
from compose_sim.core.faults.active import Ongoing, faults_to_heal, lower_fault, lower_scale, over_by_start
from compose_sim.core.faults.commands import (
    Fault,
    Heal,
    Intervention,
    Relink,
    Scale,
    intervention_from_dict,
    intervention_to_dict,
)
from compose_sim.errors import SpecError
from tests.builders import a_plan

PLAN = a_plan(nodes=4)
NAMES = tuple(node.name for node in PLAN.nodes)
SCENE = Scene(plan=PLAN, running=NAMES, ranks=dict(enumerate(NAMES)))


def ongoing(*faults: Fault) -> dict[str, Ongoing]:
    """These faults, named f0, f1, …"""
    made = (
        Ongoing(id=f"f{number}", fault=fault, lowered=lower_fault(fault, SCENE, ()))
        for number, fault in enumerate(faults)
    )
    return {each.id: each for each in made}


KILL, PAUSE = Fault(kind="kill", nodes=("node-1", "node-2")), Fault(kind="pause", nodes=("node-1",))


def test_the_same_fault_twice_is_refused_with_the_one_that_is_there() -> None:
    there = ongoing(KILL).values()

    with pytest.raises(SpecError) as caught:
        lower_fault(Fault(kind="kill", nodes=("node-2",)), SCENE, there)

    assert caught.value.message == "node-1, node-2 killed already, by f0"
    assert caught.value.hint == "composesim heal f0"
    assert lower_fault(Fault(kind="kill", nodes=("node-3",)), SCENE, there).loses == ("node-3",)
    assert lower_fault(PAUSE, SCENE, there).loses == ("node-1",)


def test_a_limit_may_follow_another_limit() -> None:
    there = ongoing(Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.5})).values()

    assert lower_fault(Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.2}), SCENE, there).do


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(kind="kill", nodes=("node-9",)), "there is no node 'node-9' in the run 'demo'"),
        (Fault(kind="restart", nodes=("master",)), "there is no node 'master' in the run 'demo'"),
        (Fault(kind="explode", nodes=("node-1",)), "there is no kind of fault 'explode'"),
        (Fault(kind="restart", nodes=("node-1",), for_s=3.0), "'restart' is over once done: it cannot be for a time"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(fault: Fault, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        lower_fault(fault, SCENE, ())

    assert message in caught.value.message


def test_a_node_that_is_held_cannot_be_told_to_do_something() -> None:
    there = ongoing(PAUSE, Fault(kind="stop", nodes=("node-3",))).values()

    for rank, by in ((1, "node-1 frozen, by f0"), (3, "node-3 stopped, by f1")):
        with pytest.raises(SpecError, match=f"node-{rank} can do nothing to itself now: {by}"):
            lower_fault(Fault(kind="rank-raise", rank=rank), SCENE, there)
    assert lower_fault(Fault(kind="rank-raise", rank=2), SCENE, there).do


def test_what_is_to_be_healed_is_one_fault_those_of_a_node_or_all() -> None:
    there = ongoing(KILL, PAUSE, Fault(kind="stop", nodes=("node-3",)))

    assert faults_to_heal(Heal(target="f1"), there, PLAN) == ("f1",)
    assert faults_to_heal(Heal(target="node-1"), there, PLAN) == ("f0", "f1")
    assert faults_to_heal(Heal(), there, PLAN) == ("f0", "f1", "f2")


def test_what_a_rank_suffers_from_is_healed_with_its_node() -> None:
    there = ongoing(Fault(kind="rank-stop", rank=2))

    assert faults_to_heal(Heal(target="node-2"), there, PLAN) == ("f0",)
    with pytest.raises(SpecError, match="nothing of node-1 is broken"):
        faults_to_heal(Heal(target="node-1"), there, PLAN)


@pytest.mark.parametrize(
    ("target", "message"),
    [("node-0", "nothing of node-0 is broken"), ("f7", "there is no fault 'f7' to heal")],
)
def test_a_heal_of_nothing_is_refused_with_what_there_is(target: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        faults_to_heal(Heal(target=target), ongoing(PAUSE), PLAN)

    assert (caught.value.message, caught.value.evidence) == (message, "there is: f0 (node-1 frozen)")
    with pytest.raises(SpecError, match="nothing of the run 'demo' is broken"):
        faults_to_heal(Heal(), {}, PLAN)


def test_a_fault_is_over_when_all_that_it_killed_runs_again() -> None:
    there = ongoing(KILL, PAUSE)

    assert over_by_start("node-1", there, {"node-0"}) == ()
    assert over_by_start("node-1", there, {"node-0", "node-2"}) == ("f0",)
    assert over_by_start("node-3", there, NAMES) == ()


def test_scaling_takes_the_last_nodes_away_and_brings_the_first_ones_back() -> None:
    plan = a_plan(elastic="2:4", nodes=3)

    assert tuple(node.name for node in plan.initial_nodes) == NAMES[:3]
    assert lower_scale(Scale(nodes=2), plan, NAMES[:3]) == NAMES[:2]
    assert lower_scale(Scale(nodes=4), plan, NAMES[:2]) == NAMES
    assert lower_scale(Scale(nodes=3), plan, ("node-0", "node-3")) == ("node-0", "node-1", "node-3")


def test_scaling_beyond_the_range_or_without_one_is_refused() -> None:
    with pytest.raises(SpecError, match="5 nodes are not within 2:4, the range of the run 'demo'"):
        lower_scale(Scale(nodes=5), a_plan(elastic="2:4"), NAMES)
    with pytest.raises(SpecError, match="the run 'demo' is not elastic: it has 4 nodes"):
        lower_scale(Scale(nodes=3), PLAN, NAMES)


@pytest.mark.parametrize(
    "intervention",
    [
        Fault(kind="cpu", nodes=("node-1",), options={"limit": 0.2, "groups": [["a"], ["b"]]}, for_s=2.5),
        Fault(kind="rank-raise", rank=0),
        Heal(target="node-1"),
        Relink(links=("1gbit", "node-0=10mbit")),
        Scale(nodes=3),
    ],
)
def test_an_intervention_survives_its_way_through_a_file(intervention: Intervention) -> None:
    assert intervention_from_dict(intervention_to_dict(intervention)) == intervention
