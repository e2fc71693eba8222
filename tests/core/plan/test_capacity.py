"""A request that is too large for this machine is refused, with a number of nodes that fit."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.host.host import Host
from compose_sim.core.plan.capacity import RANK_BYTES, default_memory_bytes, room_for_ranks
from compose_sim.errors import SpecError
from tests.builders import a_host, a_plan

GIB = 1 << 30


def a_machine(**changes: Any) -> Host:
    """Return a machine with 24 GiB of memory, of which 20 GiB are available, and a Docker engine that supports limits."""
    free = {"free_memory_bytes": 20 * GIB, "free_disk_bytes": 100 * GIB, "free_process_ids": 30_000}
    docker = replace(a_host().docker, cpus=2, memory_bytes=24 * GIB)
    return a_host(**{"memory_bytes": 24 * GIB, "docker": docker, **free, **changes})


def capacity(host: Host | None = None, **spec: Any) -> dict[str, str]:
    choices = a_plan(host or a_machine(), **spec).choices
    return {choice.what: choice.value for choice in choices if choice.what in ("memory", "disk", "capacity")}


@pytest.mark.parametrize(
    ("scarce", "spec"),
    [
        ({}, {"nodes": 500}),
        ({}, {"nodes": 500, "engine": "local"}),
        ({}, {"nodes": 300, "engine": "local", "launcher": "env"}),
        ({"free_process_ids": 100}, {"nodes": 20}),
        ({"free_disk_bytes": 9 << 20}, {"nodes": 20}),
        ({"most_neighbors": 128}, {"nodes": 128}),
        ({"free_memory_bytes": GIB}, {"nodes": [{"nproc_per_node": 4}, {"nproc_per_node": 64}]}),
    ],
)
def test_what_cannot_run_is_refused_and_the_largest_number_that_is_named_runs(
    scarce: dict[str, int], spec: dict[str, Any]
) -> None:
    host = a_machine(**scarce)
    with pytest.raises(SpecError) as caught:
        a_plan(host, **spec)

    found = re.search(r"--nodes (\d+)", caught.value.hint)
    assert found
    most = int(found[1])
    nodes = spec["nodes"]
    wider = nodes[: most + 1] if isinstance(nodes, list) else most + 1
    assert a_plan(host, **{**spec, "nodes": nodes[:most] if isinstance(nodes, list) else most})
    with pytest.raises(SpecError):
        a_plan(host, **{**spec, "nodes": wider})


def test_torch_counts_once_in_each_container_and_more_if_it_is_built_for_cuda() -> None:
    """Seen on a machine with 23 GiB available: 64 nodes took 13.5 GiB, and 66 nodes with torch for CUDA ran out of memory."""
    free = a_machine(free_memory_bytes=int(22.5 * GIB))
    python = free.python
    assert python

    assert a_plan(free, nodes=66)
    with pytest.raises(SpecError, match="66 nodes"):
        a_plan(replace(free, python=replace(python, torch_cuda="13.0")), nodes=66)
    with pytest.raises(SpecError, match="128 nodes"):
        a_plan(free, nodes=128)
    assert a_plan(free, nodes=128, engine="local")


def test_ranks_connect_lazily_where_the_table_of_neighbors_is_too_small_for_all_pairs() -> None:
    small = a_machine(most_neighbors=1024)

    lazy, eager = a_plan(small, nodes=64), a_plan(small, nodes=32)

    assert lazy.environment["TORCH_GLOO_LAZY_INIT"] == "1"
    assert "gloo" in {choice.what for choice in lazy.choices}
    assert "gloo" not in {choice.what for choice in eager.choices}
    for plan in (eager, a_plan(a_machine(most_neighbors=8192), nodes=64), a_plan(small, nodes=64, engine="local")):
        assert "TORCH_GLOO_LAZY_INIT" not in plan.environment


def test_a_table_of_neighbors_that_is_too_small_for_the_nodes_is_refused_with_the_command_that_enlarges_it() -> None:
    small = a_machine(most_neighbors=1024, free_memory_bytes=100 * GIB)

    with pytest.raises(SpecError) as caught:
        a_plan(small, nodes=350)

    assert "gc_thresh3=131072" in caught.value.hint
    assert "--nodes 341 " in caught.value.hint
    assert a_plan(small, nodes=350, launcher="env")  # ranks do not meet through gloo before the script asks for it
    assert a_plan(small, nodes=350, force=True).environment["TORCH_GLOO_LAZY_INIT"] == "1"


def test_nodes_reach_one_another_through_the_gateway_if_even_lazy_connections_have_too_many_neighbors() -> None:
    small = a_machine(most_neighbors=1024, free_memory_bytes=100 * GIB)

    routed, direct = a_plan(small, nodes=128), a_plan(small, nodes=64)

    assert routed.is_routed
    assert routed.subnet
    assert not direct.is_routed
    assert {choice.what for choice in routed.choices} - {choice.what for choice in direct.choices} == {"packets"}


def test_force_starts_them_nevertheless() -> None:
    assert capacity(nodes=500, force=True) == {"capacity": "exceeded"}


def test_a_machine_without_room_for_one_node_names_no_number() -> None:
    with pytest.raises(SpecError) as caught:
        a_plan(a_machine(free_memory_bytes=64 << 20))

    assert "--nodes" not in caught.value.hint
    assert "--force" in caught.value.hint


@pytest.mark.parametrize(
    ("scarce", "spec", "warned"),
    [
        ({}, {"nodes": 2}, set()),
        ({}, {"nodes": 1 + 20 * GIB // RANK_BYTES}, {"memory"}),
        ({}, {"nodes": 64, "memory": "600m"}, {"memory"}),
        ({"free_disk_bytes": 100 << 20}, {"nodes": 2}, {"disk"}),
        ({"free_memory_bytes": None, "free_disk_bytes": None, "free_process_ids": None}, {"nodes": 500}, set()),
    ],
    ids=["enough", "models", "limits", "disk", "unknown"],
)
def test_what_may_become_scarce_is_a_warning(scarce: dict[str, Any], spec: dict[str, Any], warned: set[str]) -> None:
    assert capacity(a_machine(**scarce), **spec).keys() == warned


def test_the_warning_starts_where_doctor_has_no_more_room() -> None:
    room = room_for_ranks(20 * GIB)

    assert not capacity(nodes=room)
    assert capacity(nodes=room + 1) == {"memory": f"room for about {room} ranks"}


@pytest.mark.parametrize(("free", "limit"), [(20 * GIB, 19 * GIB), (14 * GIB, 13 * GIB), (2 * GIB, 12 * GIB)])
def test_the_default_memory_limit_leaves_a_reserve_and_is_half_of_the_machine_at_least(free: int, limit: int) -> None:
    assert default_memory_bytes(a_machine(free_memory_bytes=free)) == limit


def test_nodes_have_default_limits_where_docker_can_set_them() -> None:
    limited, local = a_plan(a_machine()), a_plan(a_machine(), engine="local")

    assert (limited.default_cpus, limited.default_memory_bytes) == (2, 19 * GIB)
    assert (local.default_cpus, local.default_memory_bytes) == (None, None)
    assert a_plan(a_machine(), portable=True).default_memory_bytes is None
    assert a_plan().default_memory_bytes is None


@pytest.mark.parametrize(
    ("spec", "least"),
    [({"nodes": [{"memory": "1g"}, {"memory": "255m"}]}, "256m"), ({"nproc_per_node": 4, "memory": "543m"}, "544m")],
    ids=["one node", "four ranks"],
)
def test_a_limit_below_what_torch_takes_is_refused_where_the_node_imports_torch(
    spec: dict[str, Any], least: str
) -> None:
    with pytest.raises(SpecError) as caught:
        a_plan(a_machine(), **spec)

    assert f"--memory {least} " in caught.value.hint
    ranks = spec.get("nproc_per_node", 1)
    for fits in ({"memory": least}, {"memory": "64m", "force": True}, {"memory": "64m", "launcher": "env"}):
        assert a_plan(a_machine(), nproc_per_node=ranks, **fits)
