"""What can nodes reach, and what follows from it?"""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from tests.builders import a_host, a_plan, no_docker


def of_a_check(**spec: Any) -> Plan:
    """Return the plan of `check`, whose nodes are isolated unless the spec says otherwise."""
    host = a_host()
    program = Program(target="train.py", folder=host.folder)
    values = ClusterSpec.model_validate({"script": "train.py", **spec})
    return make_plan(values, host, run="demo", run_folder="/f", program=program, isolates=True)


def test_check_isolates_nodes_and_up_does_not() -> None:
    assert (of_a_check().is_isolated, a_plan().is_isolated) == (True, False)
    assert (of_a_check(network="open").is_isolated, a_plan(network="isolated").is_isolated) == (False, True)
    assert not of_a_check(engine="local").is_isolated


def test_an_isolated_run_says_so() -> None:
    assert [choice.value for choice in of_a_check().choices if choice.what == "network"] == ["isolated"]
    assert [choice for choice in a_plan().choices if choice.what == "network"] == []


@pytest.mark.parametrize("option", [{"with": ["tensorboard"]}, {"with": ["jupyter"], "publish": {"jupyter": 9999}}])
def test_an_isolated_run_publishes_nothing(option: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        a_plan(network="isolated", **option)

    assert "--network open" in caught.value.hint


@pytest.mark.parametrize("network", ["open", "isolated"])
def test_the_local_engine_has_no_network_to_choose(network: str) -> None:
    with pytest.raises(SpecError, match="the local engine does not support --network"):
        a_plan(engine="local", network=network)
    assert a_plan(a_host(docker=no_docker())).engine == "local"
