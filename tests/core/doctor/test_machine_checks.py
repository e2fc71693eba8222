"""`doctor` reports how to fix a machine, and fails only if no run is possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.doctor.gpu_messages import explain
from compose_sim.core.doctor.machine_checks import Check, Machine, diagnose, is_fit
from compose_sim.core.host.host import Inventory, PythonFacts, Toolkit
from compose_sim.core.host.torch_versions import REQUIREMENT
from tests.builders import a_host, no_docker
from tests.inventories import BROKEN, CDI, MIG, NONE, OLD_DRIVER, ONE, RAW, h200s

NO_TORCH = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",))


def a_machine(*, host: dict[str, Any] | None = None, **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "host": a_host(**{"free_memory_bytes": 8 << 30, "free_disk_bytes": 100 << 30, **(host or {})}),
        "python_why": "the active virtual environment",
        "bridge": True,
        "crashed_runs": (),
    }
    return Machine(**{**values, **changes})


def the(name: str, machine: Machine) -> Check:
    return next(check for check in diagnose(machine) if check.id == name)


def test_a_good_machine_has_nothing_to_mend() -> None:
    checks = diagnose(a_machine())

    assert {check.status for check in checks} == {"passed"}
    assert [check.hint for check in checks] == [""] * len(checks)


@pytest.mark.parametrize(
    ("host", "fit", "statuses"),
    [
        ({}, True, ("passed", "passed")),
        ({"docker": no_docker()}, True, ("passed", "warned")),
        ({"python": NO_TORCH, "docker": replace(a_host().docker, images=())}, False, ("failed", "passed")),
        ({"python": NO_TORCH}, True, ("warned", "passed")),
        ({"python": NO_TORCH, "docker": no_docker()}, False, ("failed", "failed")),
        ({"python": None, "docker": no_docker()}, False, ("failed", "failed")),
    ],
    ids=["both", "no docker", "no torch", "only an image", "neither", "no python"],
)
def test_one_engine_that_can_run_nodes_is_enough(host: dict[str, Any], fit: bool, statuses: tuple[str, str]) -> None:
    machine = a_machine(host=host)

    assert is_fit(diagnose(machine)) is fit
    assert (the("python", machine).status, the("docker", machine).status) == statuses


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.13.0+cpu", "passed"), ("2.10.0", "passed"), ("2.0.1", "warned"), ("2.99.0a0+git1", "warned"), ("x", "warned")],
)
def test_a_torch_that_is_not_tested_is_a_warning_with_the_versions_that_are(version: str, status: str) -> None:
    python = replace(NO_TORCH, packages={"torch": version})
    machine = a_machine(host={"python": python})

    check = the("python", machine)
    assert check.status == status
    assert (f"pip install '{REQUIREMENT}'" in check.hint) is (status == "warned")
    assert is_fit(diagnose(machine))


def test_an_image_that_is_not_built_is_a_warning_only_without_torch() -> None:
    docker = replace(a_host().docker, images=())

    assert the("image", a_machine(host={"docker": docker})).status == "passed"
    assert the("image", a_machine(host={"docker": docker, "python": NO_TORCH})).status == "warned"


@pytest.mark.parametrize("reason", ["the docker command is not installed", "this user may not use the Docker socket"])
def test_docker_is_told_in_the_words_of_what_is_wrong_with_it(reason: str) -> None:
    check = the("docker", a_machine(host={"docker": no_docker(reason)}))

    assert check.detail == f"{reason}; runs use the local engine"
    assert check.hint == "make engine"


@pytest.mark.parametrize(
    ("name", "changes", "hint"),
    [
        ("leftovers", {"crashed_runs": ("a", "b")}, "composesim prune"),
        ("memory", {"host": {"free_memory_bytes": 400 << 20}}, "ps aux --sort -rss | head"),
        ("disk", {"host": {"free_disk_bytes": 10 << 20}}, "composesim prune --finished"),
        ("leftovers", {"crashed_runs": ("a",), "crashed_elsewhere": True}, "composesim prune --everywhere"),
        ("bridge", {"bridge": False}, "sudo modprobe bridge"),
    ],
)
def test_what_only_some_runs_need_is_a_warning_with_its_remedy(name: str, changes: dict[str, Any], hint: str) -> None:
    check = the(name, a_machine(**changes))

    assert (check.status, check.hint) == ("warned", hint)
    assert is_fit(diagnose(a_machine(**changes)))


@pytest.mark.parametrize(
    ("inventory", "changes", "status", "words"),
    [
        (NONE, {}, "passed", "no NVIDIA GPU: nodes train on the CPU, with CUDA emulated and gloo"),
        (
            ONE,
            {},
            "passed",
            "GPU 0 NVIDIA H200 (140 GiB), driver 580.65.06; nodes get them by device files, as nodes see",
        ),
        (ONE, {"python": NO_TORCH}, "passed", "by Docker's NVIDIA runtime and share one through MPS"),
        (MIG, {}, "passed", "share one by time-slicing, because composesim does not support MPS on MIG slices"),
        (
            h200s(1, toolkit=RAW),
            {"docker": no_docker()},
            "passed",
            "by CUDA_VISIBLE_DEVICES and share one through MPS",
        ),
        (h200s(1, toolkit=CDI), {"python": NO_TORCH}, "passed", "by CDI, as Docker has no NVIDIA runtime"),
        (h200s(1, toolkit=RAW), {"python": NO_TORCH}, "passed", "by device files and the driver's libraries"),
        (h200s(1, toolkit=Toolkit()), {}, "warned", "and device files such as /dev/nvidiactl were not found"),
        (
            h200s(1, toolkit=replace(RAW, device_files=("/dev/nvidiactl",))),
            {},
            "warned",
            "'/dev/nvidia-uvm', which CUDA opens",
        ),
        (BROKEN, {}, "warned", "the NVIDIA driver does not answer: Driver/library version mismatch"),
        (OLD_DRIVER, {"torch_cuda": "13.0"}, "warned", "driver 535.104.05 supports CUDA up to 12.2"),
        (ONE, {"torch_cuda": ""}, "warned", "the nodes' torch is built without CUDA"),
    ],
)
def test_doctor_says_how_nodes_come_by_gpus_and_why_not(
    inventory: Inventory, changes: dict[str, Any], status: str, words: str
) -> None:
    told = {"torch_cuda": "12.8", **changes}
    python = replace(a_host().python, torch_cuda=told.pop("torch_cuda"))  # type: ignore[type-var]
    check = the("gpu", a_machine(host={"gpus": inventory, "python": python, **told}))

    assert check.status == status
    assert words in check.detail
    assert bool(check.hint) == (status == "warned")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RuntimeError: Expected tensor on cuda:1 but found tensor on cuda:0", "set_device(LOCAL_RANK)"),
        (
            "ncclInvalidUsage\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            "LOCAL_RANK",
        ),
        ("Multiple ranks detected using the same GPU on this node. Set NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL_HOSTID"),
        ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL_HOSTID"),
        ("CUDA error: CUDA driver version is insufficient for CUDA runtime version", "composesim doctor"),
        ("CUDA_ERROR_MPS_SERVER_NOT_READY", "--share timeslice"),
        ("ValueError: boom", ""),
    ],
)
def test_errors_that_only_gpus_bring_are_explained(error: str, words: str) -> None:
    assert words in explain(error)
    assert bool(explain(error)) == bool(words)
