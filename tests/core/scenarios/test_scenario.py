"""A scenario file is parsed, and every mistake is reported with file, line and key."""

from __future__ import annotations

import json

import pytest

from compose_sim.core.scenarios.scenario import Scenario, parse_scenario
from compose_sim.errors import SpecError
from tests.builders import ROOT

WHOLE = """
shows: a node dies and comes back
seed: 7
cluster: {elastic: "2:4"}
steps:
- at: {rank: 0, step: 20}
  fault: {kind: kill, node: node-0, for: 10s}
- at: {every: 15s, times: 3}
  pick: any
  fault: {kind: [kill, pause], limit: 0.2}
- at: {event: recovered, after: 2s}
  scale: {nodes: 3}
- at: {time: 1m}
  link: 10mbit
- at: {time: 2m}
  link: plain
- at: {time: 3m}
  heal: all
expect:
- recovered_within: 3s
- world_sizes: [4, 3, 4]
- loss_continuous: 10%
- verdict: passed
"""

BAD = [
    # text, line, message
    ("steps:\n- at: {tim: 3s}\n  fault: {kind: kill}", 2, "unknown key 'tim'; did you mean 'time'?"),
    ("steps:\n- at: {time: 3s, every: 2s}\n  scale: 1", 2, "at: time and every exclude each other"),
    ("steps:\n- at: {}\n  scale: 1", 2, "at: one of time, step, event and every is required"),
    ("steps:\n- at: {time: 3s, times: 4}\n  scale: 1", 2, "at: times requires every, not time"),
    ("steps:\n- at: 3s\n  scale: 1", 2, "at: '3s' is not a mapping"),
    ("steps:\n- at: {time: 3s}", 2, "steps: one of fault, heal, link and scale is required"),
    ("steps:\n- at: {time: 3s}\n  scale: 1\n  heal: all", 2, "steps: heal and scale are separate steps"),
    ("steps:\n- scale: 1", 2, "steps: 'at' is missing"),
    ("steps:\n- at: {time: 3s}\n  scale: 0", 3, "scale: '0' is too small: at least 1"),
    ("steps:\n- at: {time: 3s}\n  fault: {kind: kil}", 3, "kind: unknown fault 'kil'; did you mean 'kill'?"),
    ("steps:\n- at: {time: 3s}\n  fault: {node: node-1}", 2, "steps: the fault needs a kind"),
    ("steps:\n- at: {time: 3s}\n  fault: {kind: kill, rank: x}", 3, "rank: 'x' is neither a rank nor any"),
    ("steps:\n- at: {event: recoverd}\n  scale: 3", 2, "event: unknown event 'recoverd'; did you mean 'recovered'?"),
    ("expect:\n- recovered_in: 3s", 2, "unknown key 'recovered_in'; did you mean 'recovered_within'?"),
    ("expect:\n- recovered_within: soon", 2, "recovered_within: 'soon' is not a duration: write it like 90s, 10m or 1h30m"),
    ("expect:\n- exit_code: 0\n  verdict: passed", 2, "expect: an entry has exactly one expectation, such as recovered_within: 3s"),
    ("expect:\n- world_sizes: [4, x]", 2, "world_sizes: 'x' is not a whole number"),
    ("expect: {exit_code: 0}", 1, "expect: a mapping is not a list"),
    ("cluster:\n  nodes:\n  - {}\n  - {cpuss: 1}", 4, "unknown key 'cpuss'; did you mean 'cpus'?"),
    ("stepz: 3", 1, "unknown key 'stepz'; did you mean 'steps'?"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "problem"), BAD, ids=[bad[2][:40] for bad in BAD])
def test_a_mistake_is_named_with_file_line_and_key(text: str, line: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_scenario(text, "s.yaml", {})

    assert caught.value.message == f"s.yaml, line {line}: {problem}"
    assert caught.value.evidence.startswith(f"{line} | ")


def test_a_file_says_what_is_done_when_and_what_is_expected() -> None:
    scenario = parse_scenario(WHOLE, "s.yaml", {})
    kill, soak, scale, link, plain, heal = scenario.steps

    assert (scenario.seed, scenario.cluster) == (7, {"elastic": "2:4"})
    assert kill.fault
    assert (kill.at.rank, kill.at.step, kill.fault.kind, kill.fault.node, kill.fault.for_s) == (
        0, 20, ("kill",), ("node-0",), 10.0
    )  # fmt: skip
    assert soak.fault
    assert (soak.at.every, soak.pick, soak.fault.kind, soak.fault.options) == (
        15.0, "any", ("kill", "pause"), {"limit": "0.2"}
    )  # fmt: skip
    assert (scale.at.event, scale.at.after, scale.scale) == ("recovered", 2.0, 3)
    assert (link.link, plain.link, heal.heal) == (("10mbit",), (), "all")
    assert [(each.name, each.wanted) for each in scenario.expect] == [
        ("recovered_within", 3.0), ("world_sizes", (4, 3, 4)), ("loss_continuous", 0.1), ("verdict", "passed")
    ]  # fmt: skip


def test_an_option_of_a_fault_may_be_written_as_its_flag() -> None:
    """The option `--kind` of gpu-error has no other way past the key `kind`."""
    text = "steps:\n- at: {time: 3s}\n  fault: {kind: gpu-error, node: node-1, --kind: oom}"
    fault = parse_scenario(text, "s.yaml", {}).steps[0].fault
    assert fault

    assert (fault.kind, fault.node, fault.options) == (("gpu-error",), ("node-1",), {"kind": "oom"})


def test_the_published_schema_is_that_of_the_code(update_golden: bool) -> None:
    """After a change to scenarios: pytest --update-golden rewrites it."""
    published = ROOT / "templates" / "scenario.schema.json"
    schema = Scenario.model_json_schema(by_alias=True)
    if update_golden:
        published.write_text(json.dumps(schema, indent=2) + "\n")

    assert json.loads(published.read_text()) == schema
