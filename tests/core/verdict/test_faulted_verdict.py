"""The verdict on runs that were broken on purpose, and when such a run is over or must be stopped."""

from __future__ import annotations

import itertools

import pytest

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fault_attribution import fault_of, is_due_back
from compose_sim.core.verdict.verdict import is_over, judge, reason_to_stop
from tests.builders import a_plan
from tests.core.story import Story

RIGID = a_plan(nodes=3)
PATIENT = a_plan(nodes=3, max_restarts=2)
ELASTIC = a_plan(nodes=3, elastic="2:3")


def running(plan: Plan = ELASTIC) -> Story:
    """Return a run in which three nodes train."""
    return Story(plan).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 20)


def killed(story: Story, *, node: int = 1, for_s: float | None = None) -> Story:
    """One of them is killed on purpose, and its peers fail as a consequence."""
    story.fault(5.0, "fault-1", "kill", node, for_s=for_s).lost(5.1, node)
    peer = next(each for each in story.nodes if each != node)
    story.tell(5.2, "exception", peer, type="RuntimeError", message="Connection closed by peer")
    return story.tell(5.3, "rank-exited", peer, exit_code=1).stopped(5.4, {node: 137})


def test_without_elastic_an_injected_death_fails_the_run_and_is_named() -> None:
    story = killed(running(RIGID)).ended(5.5, passed=False, reason="node-1 was lost").stopped(6.0, {0: 1, 2: 143})
    verdict = judge(story.state)

    assert is_over(story.state)
    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert (verdict.cause.node, verdict.cause.message) == ("node-1", "node-1 was killed (SIGKILL) by fault-1")


def test_a_rank_that_was_made_to_fail_is_named_with_its_fault() -> None:
    story = running(RIGID).fault(5.0, "fault-2", "rank-raise", 2, lasts=False, rank=2)
    story.tell(5.1, "exception", 2, type="RuntimeError", message="raised by composesim")
    story.tell(5.2, "rank-exited", 2, exit_code=1).stopped(6.0, {0: 143, 1: 143, 2: 1})
    cause = judge(story.state).cause

    assert cause is not None
    assert (cause.rank, cause.message) == (2, "RuntimeError: raised by composesim (fault-2: node-2 rank-raise)")


def test_the_fault_is_the_cause_of_what_only_peers_told() -> None:
    """A paused node is lost seconds later, when other ranks have already failed."""
    story = running(RIGID).fault(5.0, "fault-1", "pause", 1)
    story.tell(6.0, "exception", 0, type="RuntimeError", message="timed out in the script's own words")
    story.tell(6.1, "rank-exited", 0, exit_code=1).lost(10.1, 1, "no sign of life for 5 s")
    cause = judge(story.stopped(12.0, {0: 1, 1: 143, 2: 143}).state).cause

    assert cause is not None
    assert cause.message == "node-1 was lost: no sign of life for 5 s (fault-1: node-1 pause)"


def test_a_failure_before_the_fault_is_nobodys() -> None:
    story = running(RIGID).tell(4.0, "exception", 0, type="ValueError", message="bad batch")
    story.tell(4.1, "rank-exited", 0, exit_code=1).fault(5.0, "fault-1", "kill", 1).lost(5.1, 1)
    cause = judge(story.stopped(6.0, {0: 1, 1: 137, 2: 143}).state).cause

    assert cause is not None
    assert cause.message == "ValueError: bad batch"


@pytest.mark.parametrize("raises_in", [1, 2])
def test_a_failure_after_which_the_ranks_have_started_again_is_not_the_cause(raises_in: int) -> None:
    story = killed(running(PATIENT), for_s=0.5).heals(5.6, "fault-1").starts(5.8, 1).round(6.0, 0, 1, 2, restarts=1)
    if raises_in == 2:
        story.tell(6.5, "exception", 0, type="OSError", message="other").tell(6.6, "rank-exited", 0, exit_code=1)
        story.round(7.0, 0, 1, 2, restarts=2)
    story.tell(8.0, "exception", 1, type="RuntimeError", message="bad file").tell(8.1, "rank-exited", 1, exit_code=1)
    cause = judge(story.stopped(9.0, {0: 143, 1: 1, 2: 143}).state).cause

    assert cause is not None
    assert (cause.rank, cause.message, cause.generation) == (1, "RuntimeError: bad file", raises_in)


def test_under_elastic_an_injected_death_does_not_fail_the_run() -> None:
    """The others continue; the dead node does not count at the end, and does not stop the run before."""
    story = killed(running())
    assert reason_to_stop(story.state, ELASTIC, now=60.0) is None

    story.round(6.0, 0, 2).trains(7.0, 15, 30)
    assert not is_over(story.state)

    story.ended(20.0, passed=True).stopped(20.5, {0: 0, 2: 0})
    assert is_over(story.state)
    assert judge(story.state).word == "passed"


def test_a_node_that_came_back_counts() -> None:
    story = killed(running(), for_s=4.0).round(6.0, 0, 2).trains(7.0, 15, 30)
    story.heals(9.0, "fault-1").starts(10.0, 1).round(11.0, 0, 1, 2).trains(12.0, 31, 60)
    story.ended(20.0, passed=True).stopped(20.5, {0: 0, 2: 0})
    assert not is_over(story.state)

    assert judge(story.stopped(20.6, {1: 0}).state).word == "passed"
    assert judge(story.stopped(20.7, {1: 3}).state).word == "failed"


def test_a_paused_node_is_not_waited_for_once_the_others_are_done() -> None:
    story = running().fault(5.0, "fault-1", "pause", 1).lost(10.1, 1, "no sign of life for 5 s").round(10.5, 0, 2)
    story.trains(11.0, 15, 30).ended(20.0, passed=True).stopped(20.5, {0: 0, 2: 0})

    assert is_over(story.state)
    assert judge(story.state).word == "passed"


def test_a_node_that_died_on_purpose_when_the_others_were_done_is_not_missed() -> None:
    """There is no next round to show that the node was not needed: the master ends the run."""
    story = running().fault(5.0, "fault-1", "memory", 1, lasts=False).lost(5.5, 1).ended(5.6, passed=True)
    story.stopped(6.0, {0: 0, 1: 137, 2: 0})

    assert is_over(story.state)
    assert judge(story.state).word == "passed"


def test_a_real_failure_after_an_injected_one_is_the_cause() -> None:
    story = killed(running()).round(6.0, 0, 2).trains(7.0, 15, 30)
    story.tell(9.0, "exception", 2, type="ValueError", message="bad batch").tell(9.1, "rank-exited", 2, exit_code=1)
    story.ended(9.2, passed=False, reason="rank 1 failed").stopped(9.5, {0: 143, 2: 1})
    verdict = judge(story.state)

    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert (verdict.cause.rank, verdict.cause.message) == (1, "ValueError: bad batch")


def test_with_restarts_all_nodes_come_back_and_the_run_passes() -> None:
    story = killed(running(PATIENT), for_s=4.0)
    assert reason_to_stop(story.state, PATIENT, now=8.0) is None

    story.heals(9.0, "fault-1").starts(10.0, 1).round(11.0, 0, 1, 2).trains(12.0, 15, 30)
    story.ended(20.0, passed=True).stopped(20.5, {0: 0, 1: 0, 2: 0})
    assert judge(story.state).word == "passed"


def test_a_run_of_one_node_is_not_over_while_it_is_due_back() -> None:
    plan = a_plan(nodes=1, elastic="1:1")
    story = Story(plan).starts(0.5, 0).round(1.0, 0).trains(2.0, 1, 20).fault(5.0, "fault-1", "kill", 0, for_s=5.0)
    story.lost(5.1, 0).stopped(5.2, {0: 137})
    assert not is_over(story.state)
    assert reason_to_stop(story.state, plan, now=500.0) is None

    story.heals(10.0, "fault-1")  # it has been started, and has reported nothing yet
    assert not is_over(story.state)
    story.tell(11.0, "node-stopped", exit_code=0)  # of no node
    story.starts(12.0, 0)
    assert not is_over(story.state)


def test_a_run_whose_last_node_was_killed_for_good_is_over() -> None:
    plan = a_plan(nodes=1, elastic="1:1")
    story = (
        Story(plan).starts(0.5, 0).round(1.0, 0).fault(5.0, "fault-1", "kill", 0).lost(5.1, 0).stopped(5.2, {0: 137})
    )
    verdict = judge(story.state)

    assert is_over(story.state)
    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert verdict.cause.message == "node-0 was killed (SIGKILL) by fault-1"


def test_too_few_nodes_with_nobody_due_back_stop_the_run_in_words() -> None:
    story = killed(running()).fault(8.0, "fault-2", "kill", 0).lost(8.1, 0).stopped(8.2, {0: 137})
    stop = reason_to_stop(story.state, ELASTIC, now=70.0)

    assert reason_to_stop(story.state, ELASTIC, now=60.0) is None
    assert stop is not None
    assert stop.cause is not None
    assert stop.cause.message == (
        "1 node left, but a round needs 2, and no lost node is expected back: node-1 was killed (SIGKILL) by fault-1"
    )
    told = {"reason": stop.reason, "cause": stop.cause.kind, "message": stop.cause.message}
    verdict = judge(story.tell(70.1, "stopping", 1, **told).stopped(71.0, {2: 143}).state)
    assert verdict.word == "failed"
    assert verdict.cause is not None
    assert verdict.cause.message == stop.cause.message


def test_too_few_nodes_wait_for_one_that_is_due_back() -> None:
    story = killed(running()).fault(8.0, "fault-2", "kill", 0, for_s=200.0).lost(8.1, 0).stopped(8.2, {0: 137})

    assert is_due_back(story.state, "node-0")
    assert not is_due_back(story.state, "node-1")
    assert reason_to_stop(story.state, ELASTIC, now=150.0) is None


def test_a_node_that_was_started_again_has_a_minute_to_come() -> None:
    """It may have been gone for long, and may never report anything."""
    story = killed(running(), for_s=100.0).fault(8.0, "fault-2", "kill", 0, for_s=200.0).lost(8.1, 0)
    story.stopped(8.2, {0: 137}).heals(105.0, "fault-1").heals(208.0, "fault-2")

    assert reason_to_stop(story.state, ELASTIC, now=260.0) is None
    assert reason_to_stop(story.state, ELASTIC, now=270.0) is not None


def test_a_node_whose_fault_brings_nobody_back_is_not_waited_for_for_ever() -> None:
    """The node ran out of memory: nobody starts it again."""
    plan = a_plan(nodes=1, elastic="1:1")
    story = Story(plan).starts(0.5, 0).round(1.0, 0).fault(5.0, "fault-1", "memory", 0, lasts=False)
    story.lost(5.5, 0).stopped(5.6, {0: 137})

    assert reason_to_stop(story.state, plan, now=60.0) is None
    assert reason_to_stop(story.state, plan, now=70.0) is not None


def test_a_node_that_died_by_itself_is_not_waited_for_for_ever() -> None:
    """With restarts left the others would wait for it; nobody starts it again."""
    story = running(PATIENT).lost(5.1, 1).stopped(5.2, {1: 137})
    assert reason_to_stop(story.state, PATIENT, now=9.0) is None
    stop = reason_to_stop(story.state, PATIENT, now=11.0)

    assert stop is not None
    assert stop.cause is not None
    assert stop.cause.message.startswith(
        "2 nodes left, but a round needs 3, and no lost node is expected back: node-1 was killed"
    )


def test_a_node_that_is_started_again_before_its_end_was_told_is_alive() -> None:
    """The engine's report on the old process may arrive after the new one has reported something."""
    story = running().fault(5.0, "fault-1", "restart", 1, lasts=False).lost(5.1, 1).starts(5.6, 1)
    story.stopped(5.7, {1: 137}).tell(6.5, "usage", 1, cpu_s=0.1)

    assert story.state.nodes["node-1"].phase == "rendezvous"


def test_nodes_that_were_scaled_away_or_never_began_do_not_count() -> None:
    plan = a_plan(nodes=2, elastic="2:3")
    story = Story(plan).starts(0.5, 0, 1).round(1.0, 0, 1).trains(2.0, 1, 20)
    assert "node-2" not in story.state.wanted
    story.tell(3.0, "scale", id="scale-1", nodes=3, names=["node-0", "node-1", "node-2"])
    assert "node-2" in story.state.wanted
    story.starts(4.0, 2).round(5.0, 0, 1, 2).trains(6.0, 10, 30)
    story.tell(7.0, "scale", id="scale-2", nodes=2, names=["node-0", "node-1"]).stopped(8.0, {2: 143})
    story.round(8.5, 0, 1).trains(9.0, 31, 40).ended(20.0, passed=True).stopped(20.5, {0: 0, 1: 0})

    assert "node-2" not in story.state.wanted
    assert is_over(story.state)
    assert judge(story.state).word == "passed"


def test_a_fault_that_is_done_at_once_accounts_for_nothing_in_the_next_round() -> None:
    story = running().fault(5.0, "fault-1", "memory", 1, lasts=False)
    story.tell(6.0, "rank-exited", 1, signal=9, oom=True).round(7.0, 0, 1, 2)
    state = story.tell(8.0, "rank-exited", 2, signal=9).state
    first, later = state.failures

    assert fault_of(state, first) is state.faults["fault-1"]
    assert fault_of(state, later) is None


def test_a_fault_accounts_for_what_its_node_tells_only_in_the_next_round() -> None:
    """An agent that is short of memory reports late that it has executed a command, and what happened then."""
    story = running()
    data = {"id": "fault-1", "kind": "memory", "nodes": ["node-1"], "loses": ["node-1"], "lasts": False}
    story.tell(5.0, "fault", phase="begun", **data).round(7.0, 0, 1, 2)
    story.generation = 0  # what follows is told of the round before
    story.tell(7.5, "rank-exited", 1, signal=9, oom=True).tell(7.6, "fault", phase="done", **data)
    state = story.state

    assert fault_of(state, state.failures[0]) is state.faults["fault-1"]
    assert state.ranks[1].phase == "starting"
    assert (state.failures[0].kind, state.failures[0].rank) == ("oom", 1)


def test_what_was_refused_never_was() -> None:
    story = running().fault(5.0, "fault-1", "kill", 1).tell(5.1, "refused", id="fault-1", message="no", hint="")

    assert not story.state.faults


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_files_may_be_read_in_any_order(order: tuple[int, ...]) -> None:
    """Events are assigned to a fault by when they happened, not by when they were read."""
    story = killed(running(RIGID)).stopped(6.0, {0: 1, 2: 143})
    first = next(index for index, event in enumerate(story.events) if event.kind == "fault")
    last = list(range(first, len(story.events)))
    parts = [last[:1], last[1:3], last[3:5], last[5:]]
    story.shuffled([*range(first), *(index for part in order for index in parts[part])])
    cause = judge(story.state).cause

    assert cause is not None
    assert cause.message == "node-1 was killed (SIGKILL) by fault-1"
