"""Profiles of ranks are in the time of the run, and those of two ranks do not mix."""

from __future__ import annotations

from typing import Any

from compose_sim.core.view.trace import Profile, profile_events

BASE = 1_700_000_000 * 10**9


def kineto(*events: dict[str, Any]) -> dict[str, Any]:
    named = {"ph": "M", "name": "process_labels", "pid": 7, "tid": 0, "args": {"labels": "CPU"}}
    return {"baseTimeNanoseconds": BASE, "traceEvents": [named, *events]}


def op(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 2_500_000.0, "dur": 10.0} | changes


def merged(rank: int, content: Any, lag: float = 0.0) -> list[dict[str, Any]]:
    profile = Profile(rank, f"node-{rank}", content, lag)
    return profile_events(profile, started_at=1_700_000_001.0, first_pid=1000 * (rank + 1), sort_index=rank * 10)


def test_times_are_those_of_the_run_and_processes_are_numbered_anew() -> None:
    first, second = merged(0, kineto(op())), merged(1, kineto(op()), lag=1.0)

    assert [(each["pid"], each["ts"]) for each in first if each["ph"] == "X"] == [(1000, 1_500_000.0)]
    assert [(each["pid"], each["ts"]) for each in second if each["ph"] == "X"] == [(2000, 500_000.0)]
    names = [each["args"]["name"] for each in (*first, *second) if each["name"] == "process_name"]
    assert names == ["node-0: rank 0 CPU", "node-1: rank 1 CPU"]


def test_flows_of_two_ranks_do_not_meet() -> None:
    flows = kineto(*(op(ph=phase, id=number, cat="fwdbwd") for number in (3, 4) for phase in "sf"))
    first, second = ([each["id"] for each in merged(rank, flows) if each["ph"] in "sf"] for rank in (0, 1))

    assert (first[0], second[0]) == (first[1], second[1])
    assert len({*first, *second}) == 4


def test_what_is_no_event_is_left_out() -> None:
    bad = [None, 3, op(ph="Z"), op(ts="now"), op(ts=float("nan")), op(dur=[]), op(pid="Spans"), op(tid=True)]
    content = kineto(op(), *bad, {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": []})

    assert [each["name"] for each in merged(0, content) if each["ph"] != "M"] == ["aten::mm"]
    for broken in (None, [], {"traceEvents": 3}, {"traceEvents": [[]], "baseTimeNanoseconds": "x"}):
        assert merged(0, broken) == []
