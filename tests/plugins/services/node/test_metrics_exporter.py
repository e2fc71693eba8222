"""Events and metric lines become metrics in Prometheus' text format."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from compose_sim.node.shared.event_log import EventLog
from compose_sim.plugins.services.node.metrics_exporter import Metrics, RunReader


def event(what: str, /, *, node: str | None = None, rank: int | None = None, **data: Any) -> str:
    return json.dumps(
        {"v": 1, "t": 1.0, "run": "demo", "node": node, "rank": rank, "generation": 0, "kind": what, "data": data}
    )


def values(metrics: Metrics) -> dict[str, float]:
    """Parse the text into series -> value."""
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def heard(**lines_of: list[str]) -> dict[str, float]:
    """Return the metrics after these lines in the event files of composesim, the master, node_0 and node_1."""
    metrics = Metrics()
    for writer, lines in lines_of.items():
        for line in lines:
            metrics.add_event(writer.replace("_", "-"), line)
    return values(metrics)


def test_the_latest_usage_of_a_node_is_exported() -> None:
    usage = {"cpu_s": 1.5, "memory_bytes": 1 << 20, "memory_limit_bytes": None, "received_bytes": 10, "sent_bytes": 20}

    found = heard(
        node_0=[
            event("node-started", node="node-0"),
            event("usage", node="node-0", **usage),
            event("usage", node="node-0", **{**usage, "cpu_s": 2.5, "gpu_use": 0.25, "gpu_memory_bytes": 5}),
        ]
    )

    assert found == {
        'composesim_node_up{node="node-0"}': 1,
        'composesim_node_cpu_seconds_total{node="node-0"}': 2.5,
        'composesim_node_memory_bytes{node="node-0"}': 1 << 20,
        'composesim_node_received_bytes_total{node="node-0"}': 10,
        'composesim_node_sent_bytes_total{node="node-0"}': 20,
        'composesim_node_gpu_use_ratio{node="node-0"}': 0.25,
        'composesim_node_gpu_memory_bytes{node="node-0"}': 5,
    }


def test_a_node_that_was_killed_takes_its_ranks_with_it() -> None:
    """The node cannot report it any more, but composesim does."""
    found = heard(
        node_1=[
            event("node-started", node="node-1"),
            event("rank-started", node="node-1", rank=2),
            event("rank-started", node="node-1", rank=3),
        ],
        composesim=[
            event("node-stopped", node="node-1", exit_code=137),
            event("node-stopped", node="master", exit_code=0),
        ],
    )

    assert found == {
        'composesim_node_up{node="node-1"}': 0,
        'composesim_rank_up{node="node-1",rank="2"}': 0,
        'composesim_rank_up{node="node-1",rank="3"}': 0,
    }


def test_rounds_losses_and_faults_are_counted() -> None:
    found = heard(
        master=[
            event("round", node="master", generation=2, world_size=3, restart_count=1),
            event("node-lost", node="master"),
            event("node-lost", node="master"),
        ],
        composesim=[event("fault", phase="begun", kind="kill"), event("fault", phase="done", kind="kill")],
        node_0=[
            event("step", node="node-0", rank=0, step=40),
            event("waited", node="node-0", rank=0, what="all_reduce", seconds=0.5),
        ],
    )

    assert found == {
        "composesim_round": 2,
        "composesim_world_size": 3,
        "composesim_restarts_total": 1,
        "composesim_nodes_lost_total": 2,
        'composesim_faults_total{kind="kill"}': 1,
        'composesim_rank_steps{node="node-0",rank="0"}': 40,
        'composesim_rank_longest_wait_seconds{node="node-0",rank="0"}': 0.5,
    }


def test_only_metric_lines_of_ranks_become_metrics() -> None:
    metrics = Metrics()
    for line in (
        '{"step": 1, "loss": 0.5, "name": "x", "nothing": null, "list": [1]}',
        '{"step": 2, "loss": NaN}',
        '{"loss": 7}',
        '{"step": "three", "loss": 7}',
        "{'step': 1}",
        "step 1",
    ):
        metrics.add_output("node-0", "0", line)

    text = metrics.text()
    assert 'composesim_rank_metric{node="node-0",rank="0",metric="loss"} NaN' in text
    assert 'composesim_rank_metric{node="node-0",rank="0",metric="step"} 2' in text
    assert "name" not in text.replace("metric lines", "")
    assert text.count("composesim_rank_metric{") == 2


def test_one_rank_cannot_flood_prometheus() -> None:
    metrics = Metrics()
    for step in range(1000):
        metrics.add_output("node-0", "0", json.dumps({"step": step, f"sample {step}": 1.0}))
    metrics.add_output("node-0", "1", '{"step": 1, "loss": 2}')

    found = values(metrics)
    assert len(found) == 102
    assert found['composesim_rank_metric{node="node-0",rank="0",metric="step"}'] == 999
    assert found['composesim_rank_metric{node="node-0",rank="1",metric="loss"}'] == 2


def test_names_are_quoted() -> None:
    metrics = Metrics()
    metrics.add_output("node-0", "0", json.dumps({"step": 1, 'a"b\\c\nd': 3}))

    assert 'metric="a\\"b\\\\c\\nd"} 3' in metrics.text()


def test_malformed_lines_are_ignored() -> None:
    assert heard(node_0=['{"kind": "usa', "[]", "null", '{"kind": "usage", "node": "node-0", "data": []}', ""]) == {}


def test_a_number_that_is_too_large_for_a_float_costs_no_other_metric() -> None:
    metrics = Metrics()
    metrics.add_output("node-0", "0", json.dumps({"step": 1, "large": 10**400, "loss": 2}))
    metrics.add_event("node-0", event("usage", node="node-0", cpu_s=10**400, memory_bytes=1))

    assert values(metrics) == {
        'composesim_rank_metric{node="node-0",rank="0",metric="step"}': 1,
        'composesim_rank_metric{node="node-0",rank="0",metric="loss"}': 2,
        'composesim_node_memory_bytes{node="node-0"}': 1,
    }


def test_a_node_reports_only_about_itself() -> None:
    """Its ranks write to the same file, and could otherwise report ever new nodes, or losses and faults that there were not."""
    forged = [
        event("usage", node="node-1", cpu_s=1),
        event("usage", cpu_s=1),
        event("node-exited", node="node-1"),
        event("node-lost", node="node-0"),
        event("round", node="node-0", generation=9, world_size=9, restart_count=9),
        event("fault", node="node-0", phase="begun", kind="kill"),
    ]

    assert heard(node_0=forged) == {}


def test_files_are_read_on_from_where_they_were_left(tmp_path: Path) -> None:
    """An incomplete line is read later; an agent's log has no metrics; new files are found."""
    node = tmp_path / "nodes" / "node-0"
    (node / "events").mkdir(parents=True)
    (node / "logs").mkdir()
    reader = RunReader(tmp_path)
    reader.catch_up()
    with (node / "events" / "node-0.jsonl").open("w") as file:
        file.write(
            event("step", node="node-0", rank=0, step=1) + "\n" + event("step", node="node-0", rank=0, step=2)[:20]
        )
        file.flush()
        reader.catch_up()
        assert values(reader.metrics) == {'composesim_rank_steps{node="node-0",rank="0"}': 1}
        file.write(event("step", node="node-0", rank=0, step=2)[20:] + "\n")
    (node / "logs" / "node-0.0.log").write_text('{"step": 7}\n')
    (node / "logs" / "node-0.log").write_text('{"step": 8}\n')
    reader.catch_up()

    assert values(reader.metrics) == {
        'composesim_rank_steps{node="node-0",rank="0"}': 2,
        'composesim_rank_metric{node="node-0",rank="0",metric="step"}': 7,
    }


def test_a_pipe_in_place_of_a_file_of_events_is_not_opened(tmp_path: Path) -> None:
    trap = tmp_path / "nodes" / "node-0" / "events" / "node-0.jsonl"
    trap.parent.mkdir(parents=True)
    os.mkfifo(trap)
    reader = RunReader(tmp_path)
    reader.catch_up()
    trap.unlink()
    EventLog(trap.parent.parent, "run", "node-0").emit("step", step=7)

    reader.catch_up()

    assert 'composesim_rank_steps{node="node-0"} 7' in reader.metrics.text()
