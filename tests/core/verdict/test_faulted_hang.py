"""What does not count as a hang: nodes that are stopped on purpose for a while, and ranks of earlier rounds."""

from __future__ import annotations

from compose_sim.core.verdict.hang import find_hang
from compose_sim.core.verdict.verdict import find_deadlock, reason_to_stop
from tests.builders import a_plan
from tests.core.story import Story

PLAN = a_plan(nodes=3, elastic="2:3", hang_timeout="1m")


def running() -> Story:
    return Story(PLAN).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)


def all_stand(story: Story, *, since: float, told: float) -> Story:
    """No rank of the current round makes progress."""
    for node in story.nodes:
        place = ["/home/ada/project/train.py", 40, "main", "x()"]
        data = {"since_s": told - since, "doing": "locked", "steps": 6, "place": place, "waiting_in": "all_reduce #7"}
        story.tell(told, "stalled", node, **data)
    return story


def test_a_fault_that_heals_itself_is_no_hang_until_it_has() -> None:
    """Ranks on both sides of a partition wait for each other; they continue when it is healed, or else they hang."""
    story = running().fault(5.0, "fault-1", "partition", 1, for_s=100.0)
    all_stand(story, since=6.0, told=22.0)
    assert find_hang(story.state, PLAN, now=90.0) is None
    assert reason_to_stop(story.state, PLAN, now=90.0) is None

    story.heals(105.0, "fault-1")
    assert find_hang(story.state, PLAN, now=115.0) is None
    assert find_hang(story.state, PLAN, now=125.0) is not None


def test_a_fault_that_nobody_heals_may_hang_the_run() -> None:
    story = all_stand(running().fault(5.0, "fault-1", "partition", 1), since=6.0, told=22.0)

    assert find_hang(story.state, PLAN, now=30.0) is not None


def test_a_rank_that_was_made_to_hang_is_found() -> None:
    story = running().fault(5.0, "fault-1", "rank-hang", 1, rank=1, for_s=100.0)
    all_stand(story, since=6.0, told=22.0)

    assert find_hang(story.state, PLAN, now=30.0) is not None


def test_those_that_go_on_without_a_killed_node_may_hang() -> None:
    story = running().fault(5.0, "fault-1", "kill", 1, for_s=500.0).lost(5.1, 1).round(6.0, 0, 2).trains(7.0, 21, 30)
    all_stand(story, since=8.0, told=24.0)

    assert find_hang(story.state, PLAN, now=30.0) is not None


def test_ranks_of_a_round_that_is_over_hold_up_nobody() -> None:
    """All stood still because a node was cut off; then the others started again, and have reported nothing yet."""
    story = all_stand(running().fault(5.0, "fault-1", "isolate", 1), since=5.0, told=21.0)
    story.lost(21.1, 1, "no sign of life for 5 s")
    story.round(22.0, 0, 2)

    assert find_hang(story.state, PLAN, now=500.0) is None
    story.generation = 0  # the node that was cut off reports its earlier round
    story.nodes = [0, 1, 2]
    all_stand(story, since=5.0, told=30.0)
    assert find_hang(story.state, PLAN, now=500.0) is None


def test_a_run_that_waits_for_nodes_is_no_hang() -> None:
    story = all_stand(running().fault(5.0, "fault-1", "kill", 1, for_s=300.0), since=5.0, told=21.0)
    story.lost(21.0, 1).lost(21.0, 2).tell(21.5, "rank-exited", 0, signal=15, stopped=True)

    assert find_hang(story.state, PLAN, now=200.0) is None


def test_a_rank_that_was_stopped_while_others_meet_is_no_deadlock() -> None:
    """A script may end with status 0 on SIGTERM; that does not mean that it left by itself."""
    story = running().round(5.0, 0, 1, 2).tell(6.0, "init", 0, phase="started")
    stopped = story.tell(6.5, "rank-exited", 1, exit_code=0, stopped=True)
    assert find_deadlock(stopped.state) is None

    left = story.tell(6.6, "rank-exited", 2, exit_code=0, stopped=False)
    assert find_deadlock(left.state) is not None
