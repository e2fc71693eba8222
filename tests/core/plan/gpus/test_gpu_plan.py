"""Every node gets GPUs by name, and what does not fit is refused with numbers. Uses recorded inventories."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.host.host import Inventory
from compose_sim.core.plan.model import Plan, plan_from_dict
from compose_sim.errors import ComposesimError, EnvironmentMissingError, SpecError
from tests.builders import a_host, a_plan, no_docker
from tests.inventories import (
    ALL,
    BROKEN,
    BUSY,
    EIGHT,
    FOUR,
    MIG,
    MIXED,
    NONE,
    OLD_DRIVER,
    ONE,
    WSL,
    a_gpu,
    an_inventory,
    h200s,
    uuid,
)

CUDA_TORCH = replace(a_host().python, torch_cuda="12.8")  # type: ignore[type-var]


def plan(inventory: Inventory, **spec: Any) -> Plan:
    """Return a plan for a machine with these GPUs and a torch built for CUDA 12.8."""
    return a_plan(a_host(gpus=inventory, python=CUDA_TORCH), **spec)


def seen(made: Plan) -> list[list[int]]:
    """Return which GPU each node sees, by the number in the UUID."""
    return [[int(each[-1]) for each in node.gpus.uuids] if node.gpus else [] for node in made.nodes]


def the(what: str, made: Plan) -> tuple[str, str]:
    choice = next(choice for choice in made.choices if choice.what == what)
    return choice.value, choice.why


@pytest.mark.parametrize(
    ("inventory", "spec", "expected", "words"),
    [
        (FOUR, {"nodes": 4}, [[0], [1], [2], [3]], "one GPU per node; nodes communicate over sockets, not NVLink"),
        (FOUR, {"nodes": 2}, [[0], [1]], "one GPU per node"),
        (FOUR, {"nodes": 8}, [[0], [1], [2], [3]] * 2, "2 ranks share a GPU through MPS, 70.2 GiB per rank"),
        (ONE, {"nodes": 4}, [[0]] * 4, "4 ranks share GPU 0 through MPS, 35.1 GiB per rank"),
        (EIGHT, {"nodes": 2, "gpus_per_node": 4}, [[0, 1, 2, 3], [4, 5, 6, 7]], "4 GPUs per node"),
        (EIGHT, {"nodes": 2, "nproc_per_node": 2}, [[0, 1], [2, 3]], "2 GPUs per node"),
        (FOUR, {"nodes": 4, "gpus_per_node": 2}, [[0, 1], [2, 3], [0, 1], [2, 3]], "sockets"),
        (FOUR, {"nodes": 2, "gpus": "3,1"}, [[3], [1]], "requested"),
        (FOUR, {"nodes": 2, "gpus": uuid(2)}, [[2], [2]], "2 ranks share GPU 2 through MPS"),
        (FOUR, {"nodes": [{"gpus": "3"}, {"gpus": [0, 1], "nproc_per_node": 2}, {}]}, [[3], [0, 1], [2]], "sockets"),
        (MIG, {"nodes": 3}, [[0], [1], [2]], "one GPU per node"),
        (MIG, {"nodes": 4}, [[0], [1], [2], [0]], "composesim does not support MPS on MIG slices (MIG slice 0:0)"),
        (MIXED, {"nodes": 2}, [[1], [2]], "the NVIDIA GeForce GT 1030 is another model"),
        (MIXED, {"nodes": 3, "gpus": "all"}, [[0], [1], [2]], "requested"),
        (BUSY, {"nodes": 2}, [[1], [2]], "GPU 0 is busy (100 GiB used by 4711 python3)"),
        (BUSY, {"nodes": 3, "gpus": "all"}, [[0], [1], [2]], "requested"),
        (WSL, {"nodes": 2}, [[0], [0]], "WSL does not support MPS, so ranks use time slicing: on an H200"),
    ],
)  # fmt: skip
def test_nodes_get_their_gpus(
    inventory: Inventory, spec: dict[str, Any], expected: list[list[int]], words: str
) -> None:
    made = plan(inventory, **spec)

    assert seen(made) == expected
    assert words in the("gpus", made)[1]
    assert the("backend", made) == ("nccl", "nodes have NVIDIA GPUs")
    for node in made.nodes:  # the launcher verifies the same GPUs that CUDA is configured to show
        assert node.gpus
        assert node.environment["CUDA_VISIBLE_DEVICES"] == ",".join(node.gpus.uuids)
        assert node.environment["COMPOSESIM_GPUS"] == ",".join(node.gpus.uuids)


@pytest.mark.parametrize(
    ("inventory", "why"),
    [(NONE, "this machine has no NVIDIA GPU"), (BROKEN, "Driver/library version mismatch")],
    ids=["none", "broken"],
)
def test_without_a_gpu_that_answers_cuda_is_emulated_unless_gpus_were_asked_for(inventory: Inventory, why: str) -> None:
    made = plan(inventory)
    value, words = the("gpus", made)

    assert (value, why in words) == ("emulated", True)
    assert the("backend", made)[0] == "gloo"
    for asked in ({"gpus": "all"}, {"gpus": "0"}, {"nodes": [{"gpus": "0"}]}):
        with pytest.raises(EnvironmentMissingError) as raised:
            plan(inventory, **asked)
        assert raised.value.hint


def test_a_node_may_have_no_gpu_and_a_torch_may_have_no_cuda() -> None:
    mixed = plan(ONE, nodes=[{"gpus": "none"}, {}])
    without = a_plan(a_host(gpus=ONE, python=replace(CUDA_TORCH, torch_cuda="")))

    hidden = plan(ONE, nodes=[{"gpus": "none"}, {"gpus": "none"}])

    assert the("gpus", hidden) == ("none", "requested for every node")
    assert the("backend", hidden)[0] == "gloo"
    assert seen(mixed) == [[], [0]]
    assert the("backend", mixed) == ("gloo", "not every node has a GPU")
    assert the("gpus", without) == ("emulated", "CUDA emulated on the CPU: the nodes' torch was built without CUDA")
    assert without.nodes[0].environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("inventory", "spec", "error", "words"),
    [
        (FOUR, {"gpus_per_node": 5}, SpecError, "5 GPUs per node are too many: there are 4 GPUs"),
        (ONE, {"nproc_per_node": 2}, SpecError, "node-0 needs 2 GPUs, one per rank, and there is 1 GPU"),
        (ONE, {"nodes": 49}, SpecError, "49 ranks on GPU 0 are more than the 48 clients that MPS supports on one GPU"),
        (ONE, {"nodes": 4, "gpu_memory": "40g"}, SpecError, "4 ranks with 40 GiB of GPU memory each do not fit: GPU 0 has 140 GiB"),
        (MIXED, {"nodes": 2, "gpus": "0", "share": "timeslice", "gpu_memory": "1g"}, None, ""),
        (MIXED, {"nodes": 4, "gpus": "0", "share": "timeslice"}, SpecError, "512 MiB of GPU memory for each of 4 ranks"),
        (ONE, {"nodes": 2, "share": "off"}, SpecError, "2 ranks would share GPU 0, which '--share off' forbids"),
        (WSL, {"nodes": 2, "share": "mps"}, EnvironmentMissingError, "'--share mps' does not work here: WSL does not support MPS"),
        (FOUR, {"gpus": "7"}, SpecError, "this machine has no GPU '7'"),
        (FOUR, {"gpus": "GPU-9"}, SpecError, "this machine has no GPU 'GPU-9'"),
        (MIG, {"gpus": "0"}, SpecError, "GPU '0' is divided into MIG slices"),
        (MIG, {"nodes": 1, "gpus_per_node": 2}, SpecError, "CUDA shows a process only one MIG slice"),
        (h200s(1, driver="535.104.05", cuda=(11, 4)), {}, EnvironmentMissingError, "driver 535.104.05 supports CUDA up to 11.4"),
        (OLD_DRIVER, {"image": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9"}, EnvironmentMissingError, "needs driver 580"),
        (OLD_DRIVER, {}, None, ""),  # newer CUDA of the same major version runs on an older driver
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_numbers(
    inventory: Inventory, spec: dict[str, Any], error: type[ComposesimError] | None, words: str
) -> None:
    if error is None:
        assert plan(inventory, **spec).nodes
        return
    with pytest.raises(error) as raised:
        plan(inventory, **spec)
    assert words in raised.value.message
    assert raised.value.hint


def test_ranks_that_share_a_gpu_share_its_memory() -> None:
    eight, alone = plan(ONE, nodes=8), plan(ONE, nodes=1)
    environment = eight.nodes[3].environment

    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=17971M"  # an eighth of 143771 MiB
    assert environment["COMPOSESIM_GPU_FRACTION"] == "0.1214"  # less what CUDA and NCCL take beside torch
    assert {"COMPOSESIM_GPU_FRACTION", "COMPOSESIM_MPS"}.isdisjoint(alone.nodes[0].environment)
    assert (alone.mps, eight.mps is not None) == (None, True)

    # A limit names devices as the client numbers them: MPS (driver 580) ignores one that names any other device.
    two_a_gpu, two_each = plan(FOUR, nodes=8), plan(FOUR, nodes=4, gpus_per_node=2)
    assert {node.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for node in two_a_gpu.nodes} == {"0=71885M"}
    assert two_each.nodes[3].environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=71885M,1=71885M"


@pytest.mark.parametrize(
    ("inventory", "cpus", "spec", "crowd", "channels"),
    [
        (ONE, 16, {"nodes": 7}, None, "1"),
        (ONE, 16, {"nodes": 8}, "3/8", "1"),  # two busy threads a rank leave no CPU for anything else
        (FOUR, 16, {"nodes": 8}, "3/8", "1"),
        (FOUR, 16, {"nodes": 5, "nproc_per_node": 2}, "6/10", None),  # a node's own GPUs have better ways than sockets
        (FOUR, 4, {"nodes": 4}, None, None),  # no GPU is shared
        (ONE, 16, {"nodes": 8, "env": {"NCCL_MAX_CTAS": "4"}}, "3/8", "4"),  # the user's setting wins
    ],
)
def test_many_ranks_that_share_gpus_spare_the_cpus(
    inventory: Inventory, cpus: int, spec: dict[str, Any], crowd: str | None, channels: str | None
) -> None:
    made = a_plan(a_host(gpus=inventory, python=CUDA_TORCH, cpus=cpus), **spec)

    assert made.nodes[3].environment.get("COMPOSESIM_GPU_CROWD") == crowd
    assert made.environment.get("NCCL_MAX_CTAS") == channels


def test_only_nodes_on_a_shared_gpu_join_mps_and_it_serves_no_other_gpu() -> None:
    made = plan(FOUR, nodes=5)  # the fifth shares with the first

    assert [node.joins_mps for node in made.nodes] == [True, False, False, False, True]
    assert made.mps
    assert made.mps.gpus.uuids == (uuid(0),)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in made.nodes[1].environment
    assert plan(FOUR, nodes=5, share="timeslice").mps is None


def test_the_local_engine_binds_by_variables_and_keeps_the_pipes_in_a_short_path() -> None:
    made = a_plan(a_host(gpus=ONE, python=CUDA_TORCH, docker=no_docker()), nodes=2)

    assert made.engine == "local"
    assert made.nodes[0].gpus
    assert (made.nodes[0].gpus.driver, made.nodes[0].gpus.device_files) == ("", ())
    assert made.nodes[0].environment["CUDA_MPS_PIPE_DIRECTORY"] == "/home/ada/project/.composesim/runs/demo/mps"


def test_emulated_and_hidden_gpus_hide_the_real_ones() -> None:
    for gpus in ("emulated", "none"):
        environment = plan(ONE, gpus=gpus).nodes[0].environment
        assert (environment["CUDA_VISIBLE_DEVICES"], environment["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


@pytest.mark.parametrize("name", ALL)
def test_plans_come_back_from_json(name: str) -> None:
    made = plan(ALL[name], nodes=2)

    assert plan_from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize("wrong", ["some", "0,some", "GPU", "0,0", "", "-1"])
def test_words_that_name_no_gpu_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="gpus"):
        plan(ONE, gpus=wrong)


def test_a_gpu_that_somebody_uses_counts_with_what_is_free() -> None:
    inventory = an_inventory(a_gpu(0, memory_bytes=16 << 30, used_bytes=8 << 30, processes=("1 x",)))

    assert "2 ranks share GPU 0 through MPS, 4 GiB per rank" in the("gpus", plan(inventory, nodes=2))[1]
