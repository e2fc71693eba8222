"""A crash after the training warns; a run that failed before its end is not judged."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.core.checks import NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.progress import teardown
from compose_sim.core.report.report import Cause
from compose_sim.node.records.script import RaisedAfterTraining, ScriptEnd
from tests.core.checks.rules.cluster import at, two_nodes

END = ScriptEnd(steps=8)
RAISED = RaisedAfterTraining(("/work/t.py", 9))


def test_a_crash_after_the_script_warns() -> None:
    cause = Cause(kind="teardown", rank=1, message="rank 1 crashed in teardown")
    assert teardown.judge(two_nodes(lambda _: [END], verdict="failed", cause=cause)).ranks == (1,)


def test_an_exception_in_destroy_process_group_warns() -> None:
    cause = Cause(kind="exception", rank=0, message="x", traceback="line 9, in destroy_process_group\n")
    assert teardown.judge(two_nodes(lambda _: [END], verdict="failed", cause=cause)).status == WARNED
    cause = replace(cause, traceback="line 9, in forward\n")
    assert teardown.judge(two_nodes(lambda _: [END], verdict="failed", cause=cause)).status == NOT_APPLICABLE


def test_a_good_end_passes() -> None:
    assert teardown.judge(two_nodes(lambda _: [END])).status == PASSED


def test_an_exception_behind_the_training_warns() -> None:
    cause = Cause(kind="exception", rank=0, message="KeyError: 'best'", traceback="line 9, in report\n")
    behind = teardown.judge(two_nodes(lambda rank: [RAISED] * (rank == 0), verdict="failed", cause=cause))
    assert (behind.status, at(behind)) == (WARNED, RAISED.at)
    peers = two_nodes(lambda rank: [RAISED] * (rank > 0), verdict="failed", cause=cause)
    assert teardown.judge(peers).status == NOT_APPLICABLE


def test_a_rank_that_dies_of_anothers_absence_shows_nothing_of_its_own_end() -> None:
    cause = Cause(kind="exception", rank=0, message="RuntimeError: Connection closed by peer [127.0.0.1]:18352")
    behind = teardown.judge(two_nodes(lambda rank: [RAISED] * (rank == 0), verdict="failed", cause=cause))
    assert behind.status == NOT_APPLICABLE
