"""Faults, rounds and recoveries are described clearly, and the report agrees with the live view."""

from __future__ import annotations

from typing import Any

import click
import pytest

from compose_sim.cli.views.faults import event_line, history_lines, waiting_line
from compose_sim.cli.views.report import final_line
from compose_sim.core.report.make_report import make_report
from compose_sim.core.report.report import Report
from compose_sim.core.state.progress import phase_of, wished
from tests.builders import a_plan
from tests.core.story import Story

ELASTIC = a_plan(nodes=3, elastic="2:3")


def a_story() -> Story:
    """Node-1 is killed at second 5 and back at second 16."""
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)
    story.fault(5.0, "fault-1", "kill", 1, for_s=10.0).lost(5.1, 1).stopped(5.2, {1: 137}).round(6.0, 0, 2)
    story.trains(6.4, 19, 30)
    story.tell(6.5, "recovered", id="fault-1", cause="x", seconds=1.4, world_size=2, steps_lost=2, generation=1)
    story.heals(15.0, "fault-1").starts(15.5, 1).round(16.0, 0, 1, 2).trains(17.0, 31, 60)
    return story.ended(20.0, passed=True).stopped(20.5, {0: 0, 1: 0, 2: 0})


def report_of(story: Story) -> Report:
    return make_report(story.plan, story.state)


def test_the_report_holds_what_was_done_and_what_became_of_it() -> None:
    report = report_of(a_story()).to_dict()
    times = {"begun_s": 5.0, "healed_s": 15.05, "recovered_s": 1.4, "steps_lost": 2, "back_s": 11.0}
    times |= {"checkpoint": None, "checkpoint_s": None}  # of a preemption
    fault = {"id": "fault-1", "kind": "kill", "nodes": ["node-1"], "rank": None, "text": "node-1 kill", "for_s": 10.0}

    assert report["verdict"] == "passed"
    assert report["faults"] == [fault | times]
    assert [(each["generation"], each["world_size"], each["began_s"]) for each in report["rounds"]] == [
        (0, 3, 1.0),
        (1, 2, 6.0),
        (2, 3, 16.0),
    ]
    assert report["rounds"][1]["nodes"] == ["node-0", "node-2"]
    assert (report["restarts"], report["links"], report["elastic"]) == (0, [], [2, 3])
    assert report["nodes"][1]["attempts"] == 2


def test_a_report_tells_each_fault_on_a_line() -> None:
    report = report_of(a_story())

    assert [*history_lines(report)] == [
        ("rounds", "world size 3 → 2 → 3"),
        ("faults", "fault-1: node-1 kill; 2 nodes continued after 1.40 s, 2 steps lost; back after 11.0 s"),
    ]
    assert click.unstyle(final_line(report)).endswith("3 nodes, 2 to 3 ranks of train.py in 20.5 s, 1 fault injected")


def test_a_run_without_faults_tells_nothing_of_them() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)

    assert [*history_lines(report_of(story))] == []


def test_what_happens_is_told_as_it_happens() -> None:
    story = a_story()
    told = [event_line(event, story.state) for event in story.events]

    assert [words for words in told if words] == [
        "fault-1: node-1 kill for 10.0 s",
        "round 2: world size 2 on node-0, node-2",
        "recovered from fault-1: 2 nodes continued after 1.40 s, 2 steps lost",
        "healed fault-1 (node-1 kill)",
        "round 3: world size 3 on node-0, node-1, node-2",
    ]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("link", {"links": ["1gbit"], "text": "every link 1gbit"}, "links: every link 1gbit"),
        ("link", {"links": []}, "links: plain"),
        ("scale", {"nodes": 2, "names": ["node-0", "node-1"]}, "scaled to 2 nodes: node-0, node-1"),
        (
            "refused",
            {"id": "fault-2", "message": "no tc", "hint": "modprobe"},
            "fault-2 was refused: no tc. Try: modprobe",
        ),
        ("fault", {"id": "fault-2", "text": "x", "phase": "done"}, ""),
        ("log", {"line": "hello"}, ""),
    ],
)
def test_each_kind_has_words_of_its_own(kind: str, data: dict[str, Any], words: str) -> None:
    story = Story(ELASTIC)
    story.tell(1.0, kind, **data)

    assert event_line(story.events[-1], story.state) == words


def test_of_many_faults_a_report_tells_the_first_ones() -> None:
    story = a_story()
    for number in range(2, 40):
        story.fault(5.0 + number / 100, f"fault-{number}", "cpu", 0, loses=[])
    lines = [*history_lines(report_of(story))]

    assert len(lines) == 14
    assert lines[-1] == ("", "and 27 more: add --json")


def test_a_loss_that_nobody_injected_is_told_too() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20).lost(5.0, 2).round(6.0, 0, 1)
    cause = {"cause": "node-2 was lost: silent", "seconds": 2.0, "world_size": 2, "steps_lost": 0, "generation": 1}
    story.tell(7.0, "recovered", id=None, **cause)

    assert [*history_lines(report_of(story))][-1] == (
        "losses",
        "node-2 was lost: silent; 2 nodes continued after 2.00 s, no reported step lost",
    )


def test_a_run_with_too_few_nodes_says_what_it_waits_for() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)
    story.fault(5.0, "fault-1", "kill", 1).lost(5.1, 1).stopped(5.2, {1: 137})
    assert waiting_line(story.state) == ""

    story.lost(6.0, 2)
    assert waiting_line(story.state) == (
        "1 node left, but a round needs 2: the run stops in 60 s unless node-1, node-2 can rejoin (composesim heal)"
    )
    story.tell(7.0, "heal", id="fault-1", phase="begun")
    assert waiting_line(story.state) == "1 node left, but a round needs 2: waiting for node-1, node-2"


def test_a_node_is_called_what_somebody_made_of_it() -> None:
    story = Story(a_plan(nodes=2, elastic="1:3")).starts(0.5, 0, 1).round(1.0, 0, 1).trains(2.0, 1, 20)
    assert wished(story.state) == {"node-2": "absent"}

    story.fault(5.0, "fault-1", "pause", 1)
    assert phase_of(story.state, "node-1") == "paused"

    story.heals(8.0, "fault-1").fault(9.0, "fault-2", "kill", 1)
    assert phase_of(story.state, "node-1") == "running"  # the fault has not taken effect yet

    assert phase_of(story.stopped(9.1, {1: 137}).state, "node-1") == "killed"
    assert phase_of(story.state, "node-0") == "running"
