"""Test what all kinds of faults have in common."""

from __future__ import annotations

import re

from compose_sim.core.faults.kind import RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.faults.parse import parse_fault
from compose_sim.plugins.registry import ENGINES, built_in
from tests.builders import ROOT, a_plan

INSTANTANEOUS = {"rank-raise", "rank-exit", "rank-segfault", "rank-abort", "rank-kill", "rank-term", "rank-interrupt"}
INSTANTANEOUS |= {"restart", "memory", "gpu-error"}


def test_every_kind_has_a_summary_and_engines() -> None:
    """A summary fits a line of `fault list`."""
    assert len(KINDS) >= 20
    assert [name for name, kind in KINDS.items() if not kind.summary.endswith(".") or len(kind.summary) > 90] == []
    assert {kind.engines for kind in KINDS.values()} == {("docker",), ("docker", "local", *built_in(ENGINES))}


def test_usage_shows_arguments_and_options() -> None:
    assert KINDS["kill"].usage == "NODE…"
    assert KINDS["cpu"].usage == "NODE… --limit CPUS"
    assert KINDS["partition"].usage == "NODE,… NODE,… [--one-way] [--keep-master]"
    assert KINDS["corrupt-checkpoint"].usage == "[--how truncate|flip]"


def test_a_kind_lasts_if_its_effect_can_be_reverted() -> None:
    plan = a_plan(nodes=3, memory="1g", scratch="64m")
    run = RunSnapshot(plan=plan, running=("node-0", "node-1", "node-2"), ranks={0: "node-0"})
    arguments = {"nodes": ["0"], "rank": ["0"], "groups": ["0", "1,2"], "none": []}
    required = {
        "cpu": {"limit": "0.5"},
        "slow-link": {"rate": "1mbit"},
        "loss": {"rate": "5%"},
        "delay": {"time": "5ms"},
        "gpu-error": {"kind": "ecc"},
    }
    effects = {
        name: kind.effect(parse_fault(name, arguments[kind.target], required.get(name, {}), plan=plan), run)
        for name, kind in KINDS.items()
    }

    assert {name for name, effect in effects.items() if not effect.lasts} == INSTANTANEOUS
    assert {name for name, kind in KINDS.items() if not kind.lasts} == INSTANTANEOUS


def test_every_kind_is_documented_with_its_engines() -> None:
    rows = re.findall(
        r"^\| (`.*?) \|.*?\| (docker|all) \|", (ROOT / "docs" / "fault-kinds.md").read_text(), re.MULTILINE
    )
    documented = {word: engines for cell, engines in rows for word in re.findall(r"`([a-z-]+)", cell)}

    assert documented == {name: "docker" if kind.engines == ("docker",) else "all" for name, kind in KINDS.items()}
