"""What can nodes reach, and what follows from it?"""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.plan.model import STAND_IN, Mount, Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.node.setuid_files import _GROUPS_OF_ROOT
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


def test_libraries_in_an_offline_run_are_told() -> None:
    plan = a_plan(network="offline")

    assert plan.is_isolated
    assert plan.environment["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in a_plan(network="isolated").environment
    assert [choice.value for choice in plan.choices if choice.what == "network"] == ["offline"]


def test_an_isolated_run_says_so() -> None:
    assert [choice.value for choice in of_a_check().choices if choice.what == "network"] == ["isolated"]
    assert [choice for choice in a_plan().choices if choice.what == "network"] == []


@pytest.mark.parametrize("network", ["open", "isolated"])
def test_the_local_engine_has_no_network_to_choose(network: str) -> None:
    with pytest.raises(SpecError, match="the local engine does not support --network"):
        a_plan(engine="local", network=network)
    assert a_plan(a_host(docker=no_docker())).engine == "local"


def user_of(plan: Plan) -> list[str]:
    return [f"{choice.value}: {choice.why}" for choice in plan.choices if choice.what == "user"]


ROOT_HOST: dict[str, Any] = {"user_id": 0, "group_id": 0, "user_name": "root"}


def test_nodes_of_root_run_as_another_user_who_owns_all_but_the_system() -> None:
    plan = a_plan(a_host(**ROOT_HOST), image="host")

    assert (plan.user_ids, plan.owner_ids, plan.login) == ((STAND_IN, STAND_IN), (0, 0), "root")
    assert plan.mapped == ("/home/ada/project/.composesim/runs/demo", "/home/ada/project", "/home/ada/venv")
    assert [plan.source_of(mount) for mount in plan.mounts] == [
        *("/run/composesim/demo/1", "/etc/ssl", "/run/composesim/demo/2", "/usr"),
    ]
    assert plan.source_of(Mount(source="./shared", target="/s")) == "/run/composesim/demo/0/shared"
    assert user_of(plan) == []
    assert plan.with_mounts(Mount(source="/data", target="/d")).mapped == (*plan.mapped, "/data")


@pytest.mark.parametrize(
    ("host", "spec", "why"),
    [
        (
            {"cannot_map": "Invalid argument"},
            {},
            ["root (0): files of root cannot be mapped to another user: Invalid argument"],
        ),
        (
            {},
            {"user": "root"},
            ["root (0): requested; nodes write to $COMPOSESIM_SHARED, and to the project if its permissions allow it"],
        ),
        ({}, {"engine": "local"}, []),
    ],
)
def test_nodes_of_root_stay_root(host: dict[str, Any], spec: dict[str, Any], why: list[str]) -> None:
    plan = a_plan(a_host(**ROOT_HOST, **host), **spec)

    assert (plan.user_ids, plan.mapped, user_of(plan)) == ((0, 0), (), why)


def test_a_rendered_document_maps_nothing() -> None:
    plan = a_plan(a_host(**ROOT_HOST), portable=True)

    why = "files of root cannot be mapped to another user: docker compose makes no such mounts"
    assert (plan.user_ids, plan.mapped, user_of(plan)) == ((0, 0), (), [f"root (0): {why}"])


def test_the_filter_in_nodes_knows_the_group_that_stands_in_for_root() -> None:
    assert STAND_IN in _GROUPS_OF_ROOT
