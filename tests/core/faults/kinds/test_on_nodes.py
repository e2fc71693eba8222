"""What do the kinds that hit a whole node lower to, and which words and options do they take?"""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.faults import KINDS, LimitCpus, Lowered, Pause, Scene, Signal, Start, load_kind, target_of
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.parse import read_fault
from compose_sim.errors import SpecError
from tests.builders import a_plan

PLAN = a_plan(nodes=3)
SCENE = Scene(plan=PLAN, running=("node-0", "node-1"))


def lowered(kind: str, *nodes: str, **options: Any) -> Lowered:
    return load_kind(kind).lower(Fault(kind=kind, nodes=nodes, options=options), SCENE)


def test_what_ends_a_node_is_undone_by_starting_it() -> None:
    for kind, name in (("kill", "KILL"), ("term", "TERM")):
        fault = lowered(kind, "node-0", "node-1")
        assert fault.do == (Signal(node="node-0", name=name), Signal(node="node-1", name=name))
        assert fault.undo == (Start(node="node-0"), Start(node="node-1"))
        assert (fault.loses, fault.lasts) == (("node-0", "node-1"), True)


def test_what_holds_a_node_is_undone_by_letting_it_go() -> None:
    assert lowered("stop", "node-1").undo == (Signal(node="node-1", name="CONT"),)
    assert lowered("pause", "node-1").undo == (Pause(node="node-1", on=False),)
    assert lowered("stop", "node-1").loses == lowered("pause", "node-1").loses == ("node-1",)


def test_a_restart_is_over_once_done_and_does_not_kill_what_does_not_run() -> None:
    fault = lowered("restart", "node-1", "node-2")

    assert fault.do == (Signal(node="node-1", name="KILL"), Start(node="node-1"), Start(node="node-2"))
    assert (fault.undo, fault.lasts) == ((), False)


def test_a_straggler_is_no_loss() -> None:
    fault = lowered("cpu", "node-1", limit=0.2)

    assert fault.do == (LimitCpus(node="node-1", cpus=0.2),)
    assert fault.undo == (LimitCpus(node="node-1", cpus=None),)
    assert fault.loses == ()


@pytest.mark.parametrize("kind", ["kill", "term", "stop", "pause"])
def test_a_node_that_does_not_run_cannot_be_broken(kind: str) -> None:
    with pytest.raises(SpecError, match="node-2 of the run 'demo' is not running"):
        lowered(kind, "node-1", "node-2")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_what_it_is(kind: str) -> None:
    module = load_kind(kind)

    assert module.SUMMARY.endswith(".")
    assert set(module.ENGINES) <= {"docker", "local"}
    assert target_of(module) in ("nodes", "rank", "groups", "none")


def test_words_name_nodes_as_everywhere() -> None:
    fault = read_fault("kill", ["1", "node-0", "1"], {}, plan=PLAN, for_s=2.0)

    assert fault == Fault(kind="kill", nodes=("node-1", "node-0"), for_s=2.0)


def test_options_are_read_by_the_kind() -> None:
    assert read_fault("cpu", ["2"], {"limit": "0.5"}, plan=PLAN).options == {"limit": 0.5}


@pytest.mark.parametrize(
    ("kind", "words", "options", "message"),
    [
        ("kil", ["1"], {}, "there is no kind of fault 'kil': 'kill' was meant?"),
        ("kill", [], {}, "'kill' must be told what to break: NODE…"),
        ("kill", ["7"], {}, "there is no node '7' in the run 'demo'"),
        ("kill", ["1"], {"limit": "1"}, "'kill' has no option 'limit'"),
        ("cpu", ["1"], {}, "'cpu' needs --limit"),
        ("cpu", ["1"], {"limit": "0"}, "--limit of 'cpu': '0' is not a number of CPUs, 0.01 or more"),
        ("cpu", ["1"], {"limit": "many"}, "--limit of 'cpu': could not convert"),
        ("rank-raise", ["3"], {}, "'3' is not a rank of the run 'demo': it has ranks 0 to 2"),
        ("corrupt-checkpoint", ["1"], {}, "'1' is too much"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    kind: str, words: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read_fault(kind, words, options, plan=PLAN)

    assert message in caught.value.message


def test_a_kind_that_the_engine_cannot_do_is_refused() -> None:
    with pytest.raises(SpecError, match="'cpu' cannot be done on the local engine"):
        read_fault("cpu", ["1"], {"limit": "0.5"}, plan=a_plan(engine="local"))
