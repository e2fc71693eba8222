"""The bottleneck of a training follows from the usage of nodes, and GPU columns appear if any node has a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.report.bottleneck import find_bottleneck
from compose_sim.core.report.make_report import make_report, usage_table, usage_values
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import Load
from tests.builders import a_plan, an_event


def a_load(*, cpus: float, gpu: float | None = None, sent: int | None = 0, seconds: float = 20.0) -> Load:
    """Return this many seconds of training with these means."""
    load = Load()
    for _ in range(int(seconds)):
        load = load.after(seconds=1.0, cpu_seconds=cpus, sent_bytes=sent, gpu_use=gpu)
    return load


@pytest.mark.parametrize(
    ("loads", "what", "words"),
    [
        ([a_load(cpus=1.0, gpu=0.95)] * 2, "GPU", "GPU 95% busy"),
        ([a_load(cpus=1.0, gpu=0.95, sent=400_000_000)] * 2, "communication", "each node sent 381 MiB/s"),
        ([a_load(cpus=2.0, gpu=0.2)] * 2, "CPU", "100% of 4 CPUs in use"),
        ([a_load(cpus=2.0, sent=None)] * 2, "CPU", "100% of 4 CPUs in use"),
        ([a_load(cpus=0.4, gpu=0.1)] * 2, None, ""),
        ([a_load(cpus=2.0, seconds=3)] * 2, None, ""),
        ([], None, ""),
    ],
)
def test_what_is_busy_is_what_limits(loads: list[Load], what: str | None, words: str) -> None:
    found = find_bottleneck(loads, cpus=4.0)

    assert (found and found.what) == what
    assert words in (found.why if found else "")


def test_input_limits_only_ranks_that_were_seen_to_wait_for_data() -> None:
    """A script that sleeps uses as little CPU as one that waits for data."""
    idle, busy = [a_load(cpus=0.1)] * 2, [a_load(cpus=2.0)] * 2
    shares = (None, 0.1, 0.6)

    assert [find_bottleneck(idle, cpus=4.0, data_share=share) is not None for share in shares] == [False, False, True]
    found = [find_bottleneck(busy, cpus=4.0, data_share=share) for share in shares]
    assert [each and each.what for each in found] == ["CPU", "CPU", "input"]


def a_usage(t: float, **data: Any) -> Event:
    return an_event("usage", t, node="node-0", **{"memory_bytes": 1 << 30, **data})


RUNNING = an_event("init", 1.0, rank=0, phase="done")


def test_samples_count_while_ranks_train() -> None:
    """A node that was restarted begins again: what was used in between is unknown."""
    events = [
        an_event("started", 0.0, cpus=2),
        a_usage(0.0, cpu_s=0.0, sent_bytes=0),
        a_usage(0.9, cpu_s=100.0, sent_bytes=0),  # before the ranks were ready
        RUNNING,
        a_usage(10.0, cpu_s=119.0, sent_bytes=1000, gpu_use=0.5, gpu_memory_bytes=3 << 30),
        a_usage(20.0, cpu_s=138.0, sent_bytes=3000, gpu_use=0.7, gpu_memory_bytes=2 << 30),
        a_usage(21.0, cpu_s=0.1, sent_bytes=0),
    ]
    plan = a_plan(nodes=1)
    state = fold_all(plan, events)
    load = state.nodes["node-0"].load

    assert (load.cpu_seconds, load.sent_bytes) == (38.0, 3000)
    assert load.seconds == pytest.approx(19.1)
    assert load.gpu_seconds == pytest.approx(0.5 * 9.1 + 7.0)
    bottleneck = make_report(plan, state).bottleneck
    assert bottleneck is not None
    assert bottleneck.what == "CPU"
    assert make_report(plan, fold_all(plan, events[:3])).bottleneck is None


def test_stats_shows_gpus_where_a_node_has_one() -> None:
    plan = a_plan(nodes=1)
    with_gpu = fold_all(plan, [a_usage(1.0, cpu_s=1.0, gpu_use=0.42, gpu_memory_bytes=3 << 30)])
    without = fold_all(plan, [a_usage(1.0, cpu_s=1.0)])

    header, rows = usage_table(with_gpu)
    assert (header[-2:], rows[0][-2:]) == (("GPU", "GPU memory"), ("42%", "3 GiB"))
    assert usage_values(with_gpu)[0]["gpu_use"] == 0.42
    assert len(usage_table(without)[0]) == len(header) - 2 == len(usage_table(without)[1][0])
