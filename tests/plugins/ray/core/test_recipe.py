"""The commands that start a Ray cluster, and what is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.host.host import PythonFacts
from compose_sim.core.plan.model import Plan, short_folder
from compose_sim.errors import EnvironmentMissingError, SpecError
from compose_sim.plugins.ray import core as recipe
from compose_sim.plugins.ray.node import start
from tests.builders import a_host, a_plan


def a_ray_plan(**spec: Any) -> Plan:
    """Return the plan of `up --recipe ray --nodes 2 --image ray:1 train.py` with changes to the spec."""
    return a_plan(**{"recipe": "ray", "image": "ray:1", **spec})


def words_after(command: tuple[str, ...], option: str) -> str:
    """Return the value of an option."""
    return command[command.index(option) + 1]


def test_each_node_is_told_the_sizes_of_all() -> None:
    """All nodes run the same command, and each uses its entry of the lists: 0 if nothing was set."""
    plan = a_ray_plan(nodes=[{"cpus": 1.5, "memory": "2g"}, {"cpus": 0.5}, {}])

    assert words_after(plan.nodes[2].command, "--cpus") == "1,1,0"
    assert words_after(plan.nodes[2].command, "--memory") == f"{2 << 30},0,0"
    assert words_after(plan.nodes[2].command, "--share") == "3"


def test_what_ray_counts_may_differ_from_what_nodes_may_use() -> None:
    plan = a_ray_plan(cpus=1, options={"cpus": "4", "head-cpus": "2", "ready-timeout": "30", "dashboard": "off"})

    assert words_after(plan.nodes[0].command, "--cpus") == "4,4"
    assert words_after(plan.master.command, "--cpus") == "2"
    assert words_after(plan.master.command, "--ready-timeout") == "30"
    assert "--dashboard-port" not in plan.master.command
    assert [port.name for port in plan.master.ports] == ["client"]


def test_an_elastic_cluster_begins_with_the_nodes_that_were_asked_for() -> None:
    """Nodes that may be added later get sizes too."""
    plan = a_ray_plan(nodes=2, elastic="2:4")

    assert words_after(plan.master.command, "--nodes") == "2"
    assert words_after(plan.nodes[3].command, "--cpus") == "0,0,0,0"


def test_every_client_must_show_the_token_and_finds_it_in_a_file() -> None:
    """Never in an environment or on a command line, which others can read."""
    plan = a_ray_plan()

    assert plan.has_token
    assert plan.environment["RAY_AUTH_MODE"] == "token"
    assert plan.environment["RAY_AUTH_TOKEN_PATH"] == "/composesim/secrets/token"
    assert "RAY_AUTH_TOKEN" not in plan.environment
    assert {port.name: port.port for port in plan.master.ports} == {"dashboard": 8265, "client": 10001}


def test_nodes_of_one_machine_take_free_ports_and_a_short_folder() -> None:
    """Ray's sockets would not fit below the run's folder."""
    python = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",), packages={"ray": "2.60.0"})
    host = a_host(python=python)
    plan = a_ray_plan(engine="local", image="auto", host=host)

    assert "--free-ports" in plan.nodes[0].command
    assert plan.environment["RAY_TMPDIR"] == short_folder("demo")
    assert "RAY_ADDRESS" not in plan.environment, "the head's port is not known yet"
    assert "--free-ports" not in a_ray_plan().nodes[0].command
    assert a_ray_plan().environment["RAY_ADDRESS"] == "master:29500"


def test_a_socket_of_ray_fits_into_the_kernels_107_characters() -> None:
    """Below the longest folder of a node: what Ray appends was taken from a session of Ray 2.60."""
    deepest = f"{short_folder('a' * 48)}/node-999/session_2026-11-22_10-48-00_123456_4194304/sockets/plasma_store.1"

    assert len(deepest) <= 107


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"max_restarts": 2}, "--max-restarts '2' does not apply to recipe 'ray'"),
        ({"nproc_per_node": 2}, "Ray nodes have no ranks"),
        ({"nodes": [{}, {"nproc_per_node": 4}]}, "Ray nodes have no ranks"),
        ({"launcher": "torchrun"}, "'torchrun' does not apply to recipe 'ray': Ray starts its workers itself"),
        ({"options": {"cpus": "two"}}, "option 'cpus' is 'two': expected a whole number of at least 1"),
        ({"options": {"cpus": "0"}}, "option 'cpus' is '0': expected a whole number of at least 1"),
        ({"options": {"dashboard": "maybe"}}, "option 'dashboard' is 'maybe': expected on or off"),
        ({"options": {"color": "red"}}, "recipe 'ray' has no option 'color'; there are cpus, "),
    ],
)
def test_what_ray_does_not_have_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        a_ray_plan(**spec)

    assert message in str(raised.value)
    assert raised.value.hint


def test_what_is_refused_before_the_run_is_refused_on_a_node_too() -> None:
    """The oldest supported Ray is defined twice, since nodes cannot import the recipe."""
    assert recipe.PACKAGES == {"ray": start.OLDEST}


def test_without_ray_the_first_hint_installs_it_with_its_dashboard() -> None:
    python = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",))

    with pytest.raises(EnvironmentMissingError) as caught:
        a_plan(a_host(python=python, docker=replace(a_host().docker, images=())), recipe="ray")

    assert caught.value.hint.startswith("/usr/bin/python3 -m pip install 'ray[default]', or name ")
