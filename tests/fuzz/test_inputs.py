"""Whatever a rank, a node or another user writes or sends is ignored or refused: no exception of another type, and no hang.

make fuzz FUZZ_SECONDS=300    tries new random inputs and variants of them, for that long for each kind
"""

from __future__ import annotations

import json
import socket
from contextlib import closing, suppress
from typing import Any, Literal

from hypothesis import strategies as st

from compose_sim.app.request import _parse_dotenv
from compose_sim.core.events.events import parse_metric
from compose_sim.core.events.observations import parse_rank
from compose_sim.core.faults.commands import Fault, Scale, SetLinks, intervention_from_dict, intervention_to_dict
from compose_sim.core.plan.model import plan_from_dict
from compose_sim.core.report.report import Report
from compose_sim.core.request.spec_file import parse_spec_text
from compose_sim.core.scenarios.scenario import parse_scenario
from compose_sim.errors import SpecError
from compose_sim.node.agent.stalls import stack_dump
from compose_sim.node.master.driver_membership import DriverMembership
from compose_sim.node.master.rendezvous import Rendezvous
from compose_sim.node.records import KINDS
from compose_sim.node.shared.authentication import AuthenticatedConnection
from compose_sim.node.shared.master_protocol import Connection
from tests.builders import a_plan, a_report
from tests.fuzz.strategies import JSON, damaged, fuzz, lines_of

SECRET = "5ec3e7" * 10


@fuzz(line=lines_of({"step": 1, "loss": 0.5}))
def test_printed_metrics(line: str) -> None:
    metric = parse_metric(line)
    assert metric is None or isinstance(metric["step"], int)


@fuzz(
    lines=st.lists(
        st.builds(dict, kind=st.sampled_from(sorted(KINDS)), t=JSON, x=JSON).map(json.dumps) | lines_of({"kind": "x"}),
        max_size=4,
    )
)
def test_observations(lines: list[str]) -> None:
    seen = parse_rank("node-0", 0, lines)
    assert len(seen.records) + seen.dropped == len(lines)


_STACK = 'Thread 0x00007f (most recent call first):\n  File "a.py", line 3 in f\n  File "b.py", line 4 in g\n\n'


@fuzz(
    text=st.text(max_size=80)
    | st.lists(
        st.sampled_from(
            [
                *_STACK.splitlines(keepends=True),
                "\n",
                "Current thread 0x1 (most recent call first):\n",
                f'  File "x", line {"9" * 5000} in f\n',
                f"Thread 0x{'f' * 5000} (\n",
            ]
        )
    ).map("".join)
)
def test_stacks(text: str) -> None:
    stack_dump.parse(text)


_REQUESTS = [
    {"id": "x-1", **intervention_to_dict(each)}
    for each in (
        Fault(kind="kill", nodes=("node-1",), rank=1, for_s=3.0),
        Scale(nodes=3),
        SetLinks(links=("delay=1ms",)),
    )
]


@fuzz(values=damaged(*_REQUESTS) | JSON)
def test_control_requests(values: Any) -> None:
    with suppress(ValueError):
        made = intervention_from_dict(values)
        assert intervention_from_dict(intervention_to_dict(made)) == made


@fuzz(values=damaged(a_plan().to_dict(), json.loads(json.dumps(a_plan(nodes=3).to_dict()))) | JSON)
def test_plans(values: Any) -> None:
    with suppress(ValueError):
        plan = plan_from_dict(json.loads(json.dumps(values)))
        assert plan_from_dict(plan.to_dict()) == plan


@fuzz(values=damaged(json.loads(json.dumps(a_report().to_dict()))) | JSON)
def test_reports(values: Any) -> None:
    with suppress(ValueError):
        report = Report.from_dict(json.loads(json.dumps(values)))
        json.dumps(report.to_dict()).encode()


_SPEC = {
    "nodes": 2,
    "memory": "2g",
    "timeout": "10m",
    "env": {"A": "1"},
    "mounts": ["a:/b"],
    "elastic": "1:2",
    "image": "a/b:c",
    "link": ["delay=1ms"],
    "check": {"only": "hang"},
    "cpus": 1.5,
    "publish": {"x": 1},
}
_SCENARIO = {
    "cluster": {"nodes": 2},
    "steps": [{"at": {"step": 3}, "fault": {"kind": "kill", "node": 1}}],
    "expect": [{"recovers": True}],
}
_YAML = st.text(alphabet="ab&*[]{}:-,!|>'\"#%@`? \n\t0${}", max_size=60)


@fuzz(text=lines_of(_SPEC) | _YAML, is_toml=st.booleans())
def test_spec_files(text: str, is_toml: bool) -> None:
    with suppress(SpecError):
        parse_spec_text(text, "pyproject.toml" if is_toml else "composesim.yaml", {"A": "1"})


@fuzz(text=lines_of(_SCENARIO) | _YAML)
def test_scenario_files(text: str) -> None:
    with suppress(SpecError):
        parse_scenario(text, "scenario.yaml", {})


@fuzz(text=st.text(max_size=60) | st.text(alphabet="AB=\"'\\#\n $export{}", max_size=60))
def test_dotenv_files(text: str) -> None:
    with suppress(SpecError):
        assert all("\0" not in value for value in _parse_dotenv(text, ".env").values())


_JOIN = {"type": "join", "node": "node-0", "node_rank": 0, "nproc": 1, "ready": True}
_MESSAGES = [
    _JOIN,
    {**_JOIN, "node": "node-1", "node_rank": 1, "ready": False},
    *({"type": kind} for kind in ("ready", "done", "heartbeat")),
    {"type": "failed", "rank": 0, "exit_code": 1, "signal": None, "t": 1.0},
]


@fuzz(
    messages=st.lists(st.tuples(st.integers(0, 3), damaged(*_MESSAGES)), max_size=12),
    elastic=st.booleans(),
    driven=st.booleans(),
)
def test_messages_of_nodes(messages: list[tuple[int, Any]], elastic: bool, driven: bool) -> None:
    coordinator: Any = DriverMembership([1, 1], "master", 1)
    if not driven:
        coordinator = Rendezvous(nodes=2, max_restarts=1, min_nodes=1 if elastic else None)
    coordinator.begin()
    for peer in range(4):
        coordinator.connected(peer, "10.0.0.1", 0.0)
    for number, (peer, message) in enumerate(messages):
        if isinstance(message, dict) and isinstance(message.get("type"), str):  # as every connection checks
            with suppress(ValueError):
                coordinator.received(peer, message, float(number))
    for peer in range(4):
        coordinator.gone(peer, "closed")


@fuzz(
    chunks=st.lists(
        st.binary(max_size=100)
        | st.sampled_from([b"composesim " + b"0" * 64, b" " + b"1" * 64, b"\n", b"[" * 20_000, b'{"type": "join"}\n']),
        max_size=8,
    ),
    end=st.sampled_from(["master", "node", "driver"]),
)
def test_bytes_on_a_connection(chunks: list[bytes], end: Literal["master", "node", "driver"]) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        connection = (
            Connection(ours)
            if end == "driver"
            else AuthenticatedConnection(ours, SECRET.encode(), is_master=end == "master")
        )
        for chunk in chunks:
            theirs.sendall(chunk)
            messages = connection.receive()
            assert end == "driver" or messages == []


@fuzz(text=lines_of(*_MESSAGES))
def test_messages_on_an_authenticated_connection(text: str) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        master = AuthenticatedConnection(ours, SECRET.encode(), is_master=True)
        node = AuthenticatedConnection(theirs, SECRET.encode(), is_master=False)
        for end in (node, master, node):
            end.receive()
        data = text.encode("utf-8", "replace")
        node._send(node._mac(False, 0, data) + b" " + data)
        assert all(isinstance(each["type"], str) for each in master.receive())
