"""When a run has recovered from a loss, how soon, and how many steps that cost."""

from __future__ import annotations

from compose_sim.core.state.fault_attribution import newly_recovered
from compose_sim.core.state.state import Recovery
from tests.builders import a_plan
from tests.core.story import Story

ELASTIC = a_plan(nodes=3, elastic="2:3")


def tell(story: Story) -> list[Recovery]:
    """Record all recoveries, as `up` does, and return the new ones."""
    found = []
    while recovery := newly_recovered(story.state):
        found.append(recovery)
        told = {
            name: getattr(recovery, name) for name in ("cause", "seconds", "world_size", "steps_lost", "generation")
        }
        story.tell(story.state.last_t, "recovered", id=recovery.fault, **told)
        assert len(found) < 9, "told again and again"
    return found


def lost(last: int = 20, every: int = 1) -> Story:
    """Return a run in which three nodes train and node-1 is killed at second 5."""
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, every, last, every=every)
    return story.fault(5.0, "fault-1", "kill", 1).lost(5.1, 1).stopped(5.2, {1: 137})


def test_the_first_new_step_of_a_later_round_is_the_recovery() -> None:
    story = lost()
    assert tell(story) == []
    assert tell(story.round(6.0, 0, 2)) == []

    story.trains(6.4, 11, 30)
    expected = Recovery(fault="fault-1", cause="node-1 kill", seconds=1.4, world_size=2, steps_lost=10, generation=1)
    assert tell(story) == [expected]
    assert story.state.recoveries == (expected,)
    assert tell(story) == []


def test_a_step_of_the_round_that_was_lost_is_none() -> None:
    """A rank may report its last step when the loss is already known."""
    story = lost().tell(5.3, "step", 0, step=21)

    assert tell(story) == []


def test_lines_at_every_fifth_step_tell_of_the_steps_between() -> None:
    """It continued from the checkpoint of step 12: the first line of the new round is that of step 15."""
    [recovery] = tell(lost(last=20, every=5).round(6.0, 0, 2).trains(6.4, 15, 40, every=5))

    assert recovery.steps_lost == 10


def test_no_step_is_lost_where_it_goes_on_from_the_last_one() -> None:
    [recovery] = tell(lost().round(6.0, 0, 2).trains(6.4, 21, 30))

    assert recovery.steps_lost == 0


def test_without_metric_lines_nobody_knows_how_many_steps_were_lost() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).tell(2.0, "step", 0, step=1)
    story.fault(5.0, "fault-1", "kill", 1).lost(5.1, 1).round(6.0, 0, 2).tell(7.0, "step", 0, step=1)
    [recovery] = tell(story)

    assert (recovery.seconds, recovery.steps_lost) == (2.0, None)


def test_the_first_line_of_the_new_round_is_waited_for_but_not_for_ever() -> None:
    story = lost().round(6.0, 0, 2).tell(6.4, "step", 0, step=1)
    assert tell(story) == []

    [recovery] = tell(story.tell(17.0, "usage", 0, cpu_s=1.0))
    assert (recovery.seconds, recovery.steps_lost) == (1.4, None)


def test_the_end_of_the_run_waits_for_no_line() -> None:
    story = lost().round(6.0, 0, 2).tell(6.4, "step", 0, step=1).ended(6.5, passed=True)

    assert [recovery.steps_lost for recovery in tell(story)] == [None]


def test_a_metric_line_tells_of_a_step_where_no_optimizer_is_seen() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).tell(2.0, "metric", 0, step=1)
    story.fault(5.0, "fault-1", "kill", 1).lost(5.1, 1).round(6.0, 0, 2).tell(7.0, "metric", 0, step=1)
    [recovery] = tell(story)

    assert (recovery.seconds, recovery.steps_lost) == (2.0, 1)


def test_a_round_that_fails_before_its_first_step_is_no_recovery() -> None:
    story = lost().round(6.0, 0, 2).lost(6.5, 2).round(8.0, 0, 1).trains(9.0, 11, 30)
    story.fault(6.2, "fault-2", "kill", 2)

    assert [(each.fault, each.seconds) for each in tell(story)] == [("fault-1", 4.0), ("fault-2", 2.8)]


def test_each_loss_counts_the_steps_since_the_round_before_it() -> None:
    story = lost().round(6.0, 0, 2).trains(6.4, 11, 15)
    first = tell(story)
    story.fault(9.0, "fault-2", "kill", 0).lost(9.1, 0).round(10.0, 1, 2).trains(10.5, 11, 30)

    assert [each.steps_lost for each in (*first, *tell(story))] == [10, 5]


def test_a_loss_that_nobody_injected_is_told_once_with_its_own_words() -> None:
    story = Story(a_plan(nodes=3, max_restarts=2)).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)
    story.tell(5.0, "exception", 2, type="ValueError", message="bad batch").tell(5.1, "rank-exited", 2, exit_code=1)
    story.tell(5.2, "rank-exited", 0, exit_code=1).round(6.0, 0, 1, 2, restarts=1).trains(7.0, 20, 30)
    [recovery] = tell(story)

    assert (recovery.fault, recovery.cause, recovery.seconds) == (None, "ValueError: bad batch", 2.0)


def test_a_node_that_comes_back_or_is_sent_away_is_no_loss() -> None:
    story = lost().round(6.0, 0, 2).trains(6.4, 11, 30)
    assert len(tell(story)) == 1

    story.heals(10.0, "fault-1").starts(10.5, 1).round(11.0, 0, 1, 2).trains(12.0, 31, 40)
    assert tell(story) == []

    story.tell(13.0, "scale", id="scale-1", nodes=2, names=["node-0", "node-1"])
    story.tell(13.1, "rank-exited", 0, exit_code=1).round(14.0, 0, 1).trains(15.0, 41, 50)
    assert tell(story) == []


def test_a_pause_that_nobody_noticed_is_not_recovered_from() -> None:
    story = Story(ELASTIC).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)
    story.fault(5.0, "fault-1", "pause", 1, for_s=2.0).heals(7.0, "fault-1").trains(7.1, 21, 60)

    assert tell(story) == []
    story.lost(60.0, 2).round(61.0, 0, 1).trains(62.0, 61, 70)
    assert [(each.fault, each.cause) for each in tell(story)] == [(None, "node-2 was lost: connection closed")]
