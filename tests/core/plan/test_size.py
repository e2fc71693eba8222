"""A script whose cluster has no size gets two ranks per node where they fit; nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from compose_sim.core.host.host import Host
from compose_sim.core.plan.capacity import plan_of_size, with_default_size
from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from tests.builders import a_host
from tests.inventories import h200s

ON_GPUS = replace(a_host().python, torch_cuda="12.8")  # type: ignore[type-var]


def planned(host: Host, **spec: Any) -> Plan:
    program = Program(target="train.py", folder=host.folder)
    plan_of = partial(make_plan, host=host, run="demo", run_folder="/runs/demo", program=program)
    return plan_of_size(ClusterSpec.model_validate({"script": "train.py", **spec}), plan_of)


@pytest.mark.parametrize("program", [{"script": "train.py"}, {"module": "team.train"}])
def test_a_script_without_a_size_gets_two_ranks_per_node(program: dict[str, str]) -> None:
    spec = with_default_size(ClusterSpec.model_validate({**program, "gpus": "none"}))

    assert (spec.nodes, spec.nproc_per_node) == (2, 2)


@pytest.mark.parametrize(
    "given",
    [
        {"script": "train.py", "nodes": 2},
        {"script": "train.py", "nproc_per_node": 1},
        {"script": "train.py", "elastic": "1:3"},
        {"script": "train.py", "gpus_per_node": 1},
        {"script": "train.py", "launcher": "env"},
        {"script": "hostname", "recipe": "exec"},
        {},
    ],
)
def test_another_program_or_a_given_size_keeps_one_rank_per_node(given: dict[str, Any]) -> None:
    assert with_default_size(ClusterSpec.model_validate(given)).nproc_per_node == 1


@pytest.mark.parametrize(
    ("host", "spec", "said"),
    [
        (a_host(gpus=h200s(1), python=ON_GPUS), {}, "node-0 needs 2 GPUs, one per rank, and there is 1 GPU"),
        (a_host(gpus=h200s(2), python=ON_GPUS), {}, "2 ranks would share"),
        (a_host(gpus=h200s(2), python=ON_GPUS), {"share": "off"}, "2 ranks would share"),
        (a_host(free_memory_bytes=460 << 20), {}, "2 nodes with 4 ranks need at least"),
        (a_host(), {"memory": "300m"}, "a memory limit of 300 MiB is too small for node-0"),
    ],
)
def test_a_size_that_nobody_asked_for_refuses_nothing(host: Host, spec: dict[str, Any], said: str) -> None:
    plan = planned(host, **spec)

    first = plan.choices[0]
    assert (plan.world_size, first.what, first.value) == (2, "ranks per node", "1")
    assert said in first.why
    assert first.why.endswith("--nodes and --nproc-per-node choose the size")
    with pytest.raises(SpecError, match=said):
        planned(host, **{"share": "off", **spec}, nproc_per_node=2)


def test_ranks_share_gpus_if_they_are_told_how() -> None:
    assert planned(a_host(gpus=h200s(2), python=ON_GPUS), share="mps").world_size == 4


def test_what_does_not_fit_with_one_rank_either_is_refused_with_the_flag_that_helps() -> None:
    with pytest.raises(SpecError, match="2 nodes with 2 ranks need at least") as caught:
        planned(a_host(free_memory_bytes=250 << 20))

    assert "composesim up --nodes 1 …" in caught.value.hint
