"""Test how faults are parsed from arguments and options."""

from __future__ import annotations

import pytest

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.parse import parse_fault
from compose_sim.errors import SpecError
from tests.builders import a_plan

PLAN = a_plan(nodes=3)


def test_nodes_may_be_numbers_and_are_listed_once() -> None:
    fault = parse_fault("kill", ["1", "node-0", "1"], {}, plan=PLAN, for_s=2.0)

    assert fault == Fault(kind="kill", nodes=("node-1", "node-0"), for_s=2.0)


def test_options_are_parsed_or_have_a_default() -> None:
    assert parse_fault("cpu", ["2"], {"limit": "0.5"}, plan=PLAN).options == {"limit": 0.5}
    assert parse_fault("rank-exit", ["2"], {"code": None}, plan=PLAN).options == {"code": 1}
    assert parse_fault("partition", ["0", "1,2"], {"one_way": True}, plan=PLAN).options == {
        "groups": [["node-0"], ["node-1", "node-2"]],
        "one_way": True,
        "keep_master": False,
    }


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "message"),
    [
        ("kil", ["1"], {}, "unknown fault 'kil'; did you mean 'kill'?"),
        ("kill", [], {}, "'kill' needs an argument: NODE…"),
        ("kill", [""], {}, "'kill' needs an argument: NODE…"),
        ("partition", ["0", ","], {}, "'partition' needs an argument"),
        ("kill", ["7"], {}, "there is no node '7' in the run 'demo'"),
        ("kill", ["1"], {"limit": "1"}, "'kill' has no option 'limit'"),
        ("cpu", ["1"], {}, "'cpu' needs --limit"),
        ("cpu", ["1"], {"limit": "0"}, "--limit of 'cpu': '0' is not a number of CPUs"),
        ("cpu", ["1"], {"limit": "many"}, "--limit of 'cpu': could not convert"),
        ("rank-raise", ["3"], {}, "'3' is not a rank of the run 'demo', which has ranks 0 to 2"),
        ("rank-raise", ["1", "2"], {}, "'1 2' is not a rank of the run 'demo'"),
        ("corrupt-checkpoint", ["1"], {}, "'corrupt-checkpoint' takes no argument, but got '1'"),
    ],
)
def test_invalid_arguments_are_refused(kind: str, arguments: list[str], options: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_fault(kind, arguments, options, plan=PLAN)

    assert message in caught.value.message


def test_a_kind_that_the_engine_does_not_support_is_refused() -> None:
    with pytest.raises(SpecError, match="'cpu' is not supported on the local engine"):
        parse_fault("cpu", ["1"], {"limit": "0.5"}, plan=a_plan(engine="local"))
