"""Steps become due at the right moments, once, and random choices are the same for the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Fault, Heal, Intervention, Scale, SetLinks
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.player import ScenarioPlayer
from compose_sim.core.scenarios.scenario import Scenario, parse_scenario
from compose_sim.core.state.fold import fold
from compose_sim.core.state.state import initial_state
from compose_sim.errors import SpecError
from tests.builders import ROOT, a_plan, an_event

NODES = 4
SHIPPED = sorted((ROOT / "templates" / "scenarios").glob("*.yaml"))


def a_player(*steps: dict[str, Any], seed: int = 0, driven: bool = False, **spec: Any) -> Run:
    """A player of these steps, and the run that it plays in."""
    plan = replace(a_plan(**{"nodes": NODES, "elastic": "2:4", **spec}), is_driven=driven)
    scenario = Scenario.model_validate({"steps": steps})
    return Run(plan, ScenarioPlayer(scenario, plan, seed=seed))


class Run:
    """A run in which all ranks train from the beginning; `at` returns what is due after some seconds, and what happened then."""

    def __init__(self, plan: Plan, player: ScenarioPlayer) -> None:
        self.player = player
        self.state = initial_state(plan)
        names = [node.name for node in plan.nodes]
        began = [an_event("rank-started", rank=rank) for rank in self.state.ranks]
        inside = [an_event("init", rank=rank, phase="done") for rank in self.state.ranks]
        started = (Event(t=0, kind="node-started", node=name) for name in names)
        self.at(0, Event(t=0, kind="started"), *started, *began, *inside)

    def at(self, now: float, *events: Event) -> list[tuple[str, Intervention]]:
        """Return what is due."""
        for event in events:
            self.state = fold(self.state, event)
        return self.player.due(list(events), self.state, now=now)


def words_of(intervention: Intervention) -> str:
    """`kill node-1 for 10 s`."""
    if isinstance(intervention, Fault):
        target = f"rank {intervention.rank}" if intervention.rank is not None else ", ".join(intervention.nodes)
        lasts = f" for {intervention.for_s:g} s" if intervention.for_s else ""
        return f"{intervention.kind} {target}".rstrip() + options_of(intervention.options) + lasts
    if isinstance(intervention, Heal):
        return f"heal {intervention.target or 'all'}"
    if isinstance(intervention, SetLinks):
        return f"link {' '.join(intervention.links) or 'plain'}"
    return f"scale {intervention.nodes}"


def options_of(options: Mapping[str, object]) -> str:
    return "".join(f" {name}={value}" for name, value in options.items() if value not in (None, False))


def deeds(handed: Sequence[tuple[str, Intervention]]) -> list[str]:
    return [words_of(what) for _, what in handed]


def printed(step: int, rank: int = 0) -> Event:
    return Event(t=1.0, kind="metric", rank=rank, node=f"node-{rank}", data={"step": step})


def done(given: str) -> Event:
    return Event(t=1.0, kind="fault", data={"id": given, "phase": "done", "lasts": True})


def healed(given: str) -> Event:
    return Event(t=1.0, kind="heal", data={"id": given, "phase": "done"})


def test_a_time_comes_once() -> None:
    run = a_player({"at": {"time": "15s"}, "fault": {"kind": "kill", "node": "node-1", "for": "5s"}})

    assert run.at(14.9) == []
    assert run.at(15) == [("play-1", Fault(kind="kill", nodes=("node-1",), for_s=5.0))]
    assert run.at(30) == []


def test_a_step_of_the_training_is_known_from_what_any_rank_prints_and_from_the_rank_s_own_count() -> None:
    step = {"at": {"rank": 2, "step": 50}, "scale": 3}
    run, other = a_player(step), a_player(step)

    assert run.at(1, printed(45)) == []
    assert run.at(2, printed(50)) == [("play-1", Scale(nodes=3))]
    own = Event(t=1.0, kind="step", rank=2, node="node-2", generation=0, data={"step": 50})
    assert deeds(other.at(1, own)) == ["scale 3"]


def test_a_step_of_a_training_that_one_program_drives_is_known_from_what_it_prints() -> None:
    step = {"at": {"step": 50}, "link": "10mbit"}
    run, other = a_player(step, driven=True), a_player(step, driven=True)
    told = Event(t=1.0, kind="metric", node="driver", data={"step": 50})
    ended = Event(t=1.0, kind="ended", node="master", data={"passed": True, "exit_code": 0})

    assert deeds(run.at(2, told)) == ["link 10mbit"]
    assert other.at(2, told, ended) == []


def test_an_event_counts_once_the_step_before_was_played() -> None:
    recovered = Event(t=20.0, kind="recovered", data={"seconds": 1.0})
    run = a_player(
        {"at": {"time": "15s"}, "fault": {"kind": "kill", "node": "node-1"}},
        {"at": {"event": "recovered", "after": "2s"}, "heal": "node-1"},
        {"at": {"event": "recovered"}, "link": ["10mbit"]},
    )

    assert run.at(10, recovered) == []
    assert deeds(run.at(15)) == ["kill node-1"]
    assert run.at(20, recovered) == []
    assert run.at(21.9) == []
    assert run.at(22) == [("play-2", Heal(target="node-1"))]
    later = Event(t=30.0, kind="recovered", data={"seconds": 1.0})
    assert run.at(30, later) == [("play-3", SetLinks(links=("10mbit",)))]


def test_an_event_of_another_node_is_not_meant() -> None:
    run = a_player({"at": {"event": "node-lost", "node": "node-2"}, "heal": "all"})

    assert run.at(1, Event(t=1, kind="node-lost", data={"node": "node-1"})) == []
    assert deeds(run.at(1, Event(t=1, kind="node-lost", data={"node": "node-2"}))) == ["heal all"]


def test_a_round_of_another_size_is_not_meant() -> None:
    run = a_player({"at": {"event": "round", "world_size": 3}, "heal": "all"})

    assert run.at(1, Event(t=1, kind="round", data={"world_size": 4})) == []
    assert deeds(run.at(1, Event(t=1, kind="round", data={"world_size": 3}))) == ["heal all"]


def test_every_comes_again_and_again_and_what_was_missed_is_not_made_up_for() -> None:
    run = a_player({"at": {"every": "10s", "times": 3}, "scale": 3})

    assert [now for now in (5, 10, 11, 19, 35, 36, 40, 50, 60) if run.at(now)] == [10, 35, 40]


def test_every_ends_at_until() -> None:
    run = a_player({"at": {"every": "10s", "until": "25s"}, "scale": 3})

    assert [now for now in (10, 20, 30, 40) if run.at(now)] == [10, 20]


def test_nothing_is_done_to_a_training_that_has_ended() -> None:
    run = a_player({"at": {"time": "5s"}, "fault": {"kind": "kill", "node": "node-1"}})
    ended = Event(t=4.0, kind="script-ended", rank=0, node="node-0", generation=0, data={"exit_code": 0})

    assert run.at(6, ended) == []
    assert [(step.times, step.refused) for step in run.player.outcomes()] == [(0, "")]


SOAK = {"at": {"every": "1s"}, "pick": "any", "fault": {"kind": ["kill", "pause", "term"]}}


def _course(seed: int, turns: int = 30) -> list[str]:
    """A soak does this; each fault is healed before the next turn."""
    run, all_of_them = a_player(SOAK, seed=seed), []
    for now in range(1, turns + 1):
        handed = run.at(now)
        all_of_them += deeds(handed)
        for given, _ in handed:
            run.at(now + 0.5, done(given), healed(given))
    return all_of_them


def test_chance_takes_the_same_for_the_same_seed_and_everything_at_some_time() -> None:
    first = _course(1)

    assert first == _course(1)
    assert first != _course(2)
    assert {word.split()[0] for word in first} == {"kill", "pause", "term"}
    assert {word.split()[1] for word in first} == {"node-0", "node-1", "node-2", "node-3"}


def test_chance_takes_no_node_that_bears_a_fault_and_waits_where_none_is_left() -> None:
    run, handed = a_player(SOAK), []
    for now in range(1, NODES + 1):
        handed += run.at(now)
        run.at(now + 0.5, done(handed[-1][0]))
    faults = [what for _, what in handed if isinstance(what, Fault)]

    assert sorted(fault.nodes for fault in faults) == [(f"node-{number}",) for number in range(NODES)]
    assert run.at(10) == []
    assert [step.refused for step in run.player.outcomes()] == [""], "a turn that finds nothing is passed over"
    run.at(10.5, healed(handed[2][0]))
    assert [what.nodes for _, what in run.at(11) if isinstance(what, Fault)] == [faults[2].nodes]


def test_chance_takes_nothing_that_is_not_there() -> None:
    """Two groups need two nodes, and a rank fault needs a started rank: without these, the turn is skipped."""
    groups = {"at": {"every": "1s"}, "pick": "any", "fault": {"kind": "partition"}}
    run = a_player(
        {**SOAK, "at": {"time": "1s"}}, {**SOAK, "at": {"time": "1s"}}, {**SOAK, "at": {"time": "1s"}}, groups
    )

    assert [what.nodes for _, what in run.at(1) if isinstance(what, Fault) and what.kind == "partition"] == []
    fresh = a_player({"at": {"every": "1s"}, "pick": "any", "fault": {"kind": "rank-raise"}})
    fresh.state = initial_state(a_plan(nodes=NODES))
    assert fresh.at(1) == []


def test_a_step_for_which_nothing_was_ever_left_says_so() -> None:
    once = {"at": {"time": "1s"}, "pick": "any", "fault": {"kind": "kill"}}
    run = a_player(once, once, nodes=1, elastic=None)

    assert len(run.at(1)) == 1
    assert [step.refused for step in run.player.outcomes()] == ["", "no valid choice was left"]


def test_chance_goes_no_faster_than_faults_are_injected() -> None:
    run = a_player(SOAK)
    given = run.at(1)[0][0]

    assert run.at(2) == []
    run.at(2.5, done(given))
    assert len(run.at(3)) == 1


def test_of_several_kinds_those_that_are_over_once_done_are_not_for_a_time() -> None:
    kinds = {"kind": ["kill", "restart", "rank-raise"], "for": "5s"}
    run = a_player(*[{"at": {"time": f"{t}s"}, "pick": "any", "fault": kinds} for t in range(1, 31)])
    lasts = set()
    for now in range(1, 31):
        for given, what in run.at(now):
            assert isinstance(what, Fault)
            lasts.add((what.kind, what.for_s))
            run.at(now, done(given), healed(given))

    assert lasts == {("kill", 5.0), ("restart", None), ("rank-raise", None)}


def test_any_kind_is_one_that_can_be_done_to_this_run_without_more_words() -> None:
    run = a_player(*[{"at": {"time": f"{t}s"}, "pick": "any", "fault": {"kind": "any"}} for t in range(1, 101)])
    kinds = set()
    for now in range(1, 101):
        for given, what in run.at(now):
            assert isinstance(what, Fault)
            kinds.add(what.kind)
            run.at(now, done(given), healed(given))

    assert {"kill", "pause", "restart", "rank-raise", "rank-kill"} < kinds
    assert kinds.isdisjoint({"cpu", "memory", "disk-full", "isolate", "delay"})


def test_a_refused_step_is_told_and_its_node_is_free_again() -> None:
    run = a_player({"at": {"time": "1s"}, "pick": "any", "fault": {"kind": "kill"}}, SOAK, nodes=1, elastic=None)
    given = run.at(1)[0][0]
    assert run.at(2) == []
    refused = Event(t=2, kind="refused", data={"id": given, "message": "node-0 is not running"})

    assert len(run.at(3, refused)) == 1
    assert [step.refused for step in run.player.outcomes()] == ["node-0 is not running", ""]


BAD = [
    ({"at": {"time": "1s"}, "scale": 5}, "step 1: cannot scale to 5 nodes: the range of --elastic is 2:4"),
    ({"at": {"time": "1s"}, "heal": "node-7"}, "step 1: there is no node 'node-7': nodes are node-0 to node-3"),
    ({"at": {"rank": 9, "step": 1}, "scale": 2}, "step 1: there is no rank 9: ranks are 0 to 3"),
    ({"at": {"time": "1s"}, "fault": {"kind": "kill", "node": "node-9"}}, "step 1: .*node-9"),
    ({"at": {"time": "1s"}, "fault": {"kind": "kill", "node": "node-1", "speed": 3}}, "step 1: .*speed"),
    ({"at": {"time": "1s"}, "fault": {"kind": "cpu", "node": "node-1"}}, "step 1: .*limit"),
    ({"at": {"time": "1s"}, "fault": {"kind": "kill"}}, "step 1: .*needs an argument"),
    ({"at": {"time": "1s"}, "fault": {"kind": "restart", "node": "node-1", "for": "2s"}}, "step 1: .*is instantaneous"),
]


@pytest.mark.parametrize(("step", "problem"), BAD, ids=[bad[1][:40] for bad in BAD])
def test_what_cannot_be_done_to_the_run_is_said_before_it_begins(step: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        a_player(step)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_scenario_that_ships_makes_sense(path: Path) -> None:
    """The steps are possible in the cluster that the scenario requests, and it has a description and a summary."""
    text = path.read_text()
    scenario = parse_scenario(text, path.name, {})
    plan = a_plan(**{"script": "train_ddp.py", **scenario.cluster})

    assert [step.times for step in ScenarioPlayer(scenario, plan, seed=0).outcomes()] == [0] * len(scenario.steps)
    assert text.startswith("# ")
    assert scenario.shows
    assert "nothing_left" in {each.name for each in scenario.expect}
