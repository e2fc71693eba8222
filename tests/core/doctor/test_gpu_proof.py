"""What the output of a run proves about the run's GPUs, and how sharing modes compare; from recorded output."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.doctor.gpu_bench_table import Sample, sample_of, svg_plot, table_rows, text_plot
from compose_sim.core.doctor.gpu_messages import NcclFacts, read_nccl_log
from compose_sim.core.doctor.gpu_proof import findings
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.report import Cause, Report
from tests.builders import a_host, a_plan, a_report
from tests.inventories import ONE, h200s, uuid

LOG = """\
node-0:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eth0
node-0:7:7 [0] NCCL INFO Bootstrap: Using eth0:10.210.0.3<0>
NCCL version 2.29.7+cuda13.0
node-0:7:31 [0] NCCL INFO NET/Socket : Using [0]eth0:10.210.0.3<0>
node-0:7:31 [0] NCCL INFO comm 0x5581 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
node-0:7:35 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
node-0:7:35 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
{"step": 1, "note": "via P2P is not NCCL's word here"}
"""
INSIDE = """\
n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n:1:2 [0] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct
"""
METRICS = {
    "step_ms": 3.64,
    "large_step_ms": 21.5,
    "latency_us": 95.2,
    "all_reduce_ms": 31.8,
    "all_reduce_bytes": 64 << 20,
    "bus_gigabytes_per_s": 3.69,
    "ranks": [{"node": f"node-{number}", "uuids": [uuid(0)[4:]], "mps": True} for number in range(2)],
}


def plan(**spec: Any) -> Plan:
    return a_plan(a_host(gpus=ONE), **spec)


def report(**changes: Any) -> Report:
    return a_report(**{"metrics": METRICS, **changes})


def judged(made: Plan, told: Report, words: NcclFacts | None = None) -> dict[str, tuple[str, str]]:
    checks = findings(made, told, words or read_nccl_log(LOG.splitlines()))
    return {check.id: (check.status, check.detail) for check in checks}


def test_what_nccl_says_is_read() -> None:
    assert read_nccl_log(LOG.splitlines()) == NcclFacts(
        transports=("NET/Socket",), version="2.29.7", nodes=2, interface="eth0"
    )
    assert read_nccl_log(INSIDE.splitlines()).transports == ("P2P", "SHM")
    assert read_nccl_log(["nothing of the sort"]) == NcclFacts()


def test_a_run_in_which_all_is_as_planned_proves_it() -> None:
    checks = judged(plan(), report())

    assert {status for status, _ in checks.values()} == {"passed"}
    assert checks["uuids"][1] == "each of 2 ranks sees the planned GPU, by UUID"
    assert checks["mps"][1] == "2 of 2 ranks reach their GPU through MPS"
    assert checks["transport"][1].startswith("NCCL 2.29.7 between ranks: NET/Socket on eth0; it sees 2 hosts")
    assert (
        checks["speed"][1] == "all-reduce of 64 MiB in 31.8 ms (3.69 GB/s), of 8 bytes in 95 µs; a DDP step in 3.64 ms"
    )


@pytest.mark.parametrize(
    ("ranks", "name", "status", "words"),
    [
        ([{"uuids": ["another"]}, {}], "uuids", "failed", "ranks of node-0 did not see the planned GPUs"),
        ([{}], "uuids", "failed", "ranks of some nodes did not see"),
        ([{"mps": False}, {}], "mps", "failed", "1 of 2 ranks reach their GPU through MPS"),
        ([{"mps": None}, {}], "mps", "warned", "this driver does not report"),
    ],
)
def test_what_is_not_as_planned_is_found(ranks: list[dict[str, Any]], name: str, status: str, words: str) -> None:
    told = [{**METRICS["ranks"][number], **changes} for number, changes in enumerate(ranks)]  # type: ignore[index]
    found = judged(plan(), report(metrics={**METRICS, "ranks": told}))[name]

    assert (found[0], words in found[1]) == (status, True)


def test_nodes_that_meet_past_the_network_are_found() -> None:
    words = replace(read_nccl_log(INSIDE.splitlines()), nodes=2)

    assert judged(plan(), report(), words)["transport"][0] == "failed"
    assert judged(plan(), report(), NcclFacts())["transport"][0] == "warned"


def test_sharing_by_turns_and_a_run_that_failed_are_said() -> None:
    by_turns = judged(plan(share="timeslice"), report())
    own = judged(a_plan(a_host(gpus=h200s(2))), report())
    failed = judged(
        plan(), report(verdict="failed", metrics={}, cause=Cause(kind="start", message="node-0 sees no GPU\nmore"))
    )

    assert by_turns["mps"] == ("warned", "ranks share a GPU by time-slicing: MPS is not used")
    assert own["mps"] == ("passed", "no GPU is shared: MPS is not used")
    assert failed == {"run": ("failed", "node-0 sees no GPU")}


def test_samples_become_a_table_and_a_plot() -> None:
    slow = report(metrics={**METRICS, "step_ms": 157.0})
    broken = report(verdict="hung", metrics={}, cause=Cause(kind="hang", message="no rank moves"))
    samples = [sample_of("mps", 8, report()), sample_of("timeslice", 8, slow), sample_of("timeslice", 16, broken)]

    assert table_rows(samples) == [
        ("mps", "8", "3.64 ms", "21.50 ms", "95 µs", "31.8 ms", "3.69"),
        ("timeslice", "8", "157.00 ms", "21.50 ms", "95 µs", "31.8 ms", "3.69"),
        ("timeslice", "16", "no rank moves", "–", "–", "–", "–"),
    ]
    bars = [line.count("█") for line in text_plot(samples)]
    assert bars == [1, 40]


@pytest.mark.parametrize("times", [[], [3.0], [10.0, 10.0], [1.0, 157.0, 100.0]])
def test_the_plot_is_a_picture_whatever_was_measured(times: list[float]) -> None:
    samples = [Sample(mode="mps", nodes=2**number, step_ms=time) for number, time in enumerate(times)]
    picture = ElementTree.fromstring(svg_plot(samples))

    points = [each.get("points", "").split() for each in picture.iter() if each.tag.endswith("polyline")]
    assert [len(line) for line in points] == ([len(times)] if times else [])
    for x, y in (point.split(",") for line in points for point in line):
        assert 0 <= float(x) <= 640
        assert 0 <= float(y) <= 360
