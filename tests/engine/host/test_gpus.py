"""The inventory matches what the driver and Docker report. Uses recorded answers of NVML, since most machines have no GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.host.host import NO_GPUS, Host
from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host import gpus
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from tests.inventories import H200_BYTES, RAW, h200s, uuid


class Recorded:
    """Return NVML's answers on a machine whose first GPU is whole and in use, and whose second has two MIG slices."""

    NVMLError = pynvml.NVMLError

    def _memory(self, handle: str) -> Any:
        whole = handle in ("gpu-0", "gpu-1")
        return SimpleNamespace(total=H200_BYTES if whole else 18 << 30, used=5 << 30 if handle == "gpu-0" else 0)

    def _slice(self, parent: str, place: int) -> str:
        if place > 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"slice-{place}"

    def _mig_mode(self, handle: str) -> list[int]:
        if handle == "gpu-0":  # a model that cannot be cut does not know the question
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda number: f"gpu-{number}",
            "nvmlDeviceGetUUID": lambda handle: {"gpu-0": uuid(0), "gpu-1": uuid(1)}.get(handle, f"MIG-{handle}"),
            "nvmlDeviceGetName": lambda handle: "NVIDIA H200" + (" MIG 1g.18gb" if "slice" in handle else ""),
            "nvmlDeviceGetMinorNumber": lambda handle: int(handle[-1]),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=999999999)],
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda parent: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._slice,
            "nvmlDeviceGetGpuInstanceId": lambda handle: 3,
            "nvmlDeviceGetComputeInstanceId": lambda handle: 0,
        }
        assert hasattr(pynvml, name), f"NVIDIA's own binding has no {name}"
        return answers[name]


def test_a_whole_gpu_and_the_slices_of_one_that_is_cut_are_listed() -> None:
    found = list(gpus._gpus(Recorded()))

    assert [(gpu.index, gpu.uuid, gpu.parent, gpu.profile) for gpu in found] == [
        ("0", uuid(0), "", ""),
        ("1:0", "MIG-slice-0", uuid(1), "1g.18gb"),
        ("1:1", "MIG-slice-1", uuid(1), "1g.18gb"),
    ]
    assert [gpu.memory_bytes for gpu in found] == [H200_BYTES, 18 << 30, 18 << 30]
    assert (found[0].used_bytes, found[0].processes, found[0].is_busy) == (5 << 30, ("999999999",), True)
    assert {gpu.capability for gpu in found} == {(9, 0)}
    assert [gpu.minor for gpu in found] == [0, 1, 1]


def test_what_the_driver_itself_does_not_answer_is_a_fact_and_no_crash() -> None:
    """Every machine has an inventory; without a driver it is empty."""
    found = gpus.inspect_gpus()

    assert found == NO_GPUS or found.gpus or found.problem


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, ()),
        ({"CDISpecDirs": []}, ()),
        ({"CDISpecDirs": ["{folder}"]}, ("nvidia.com/gpu=0", "nvidia.com/gpu=all")),
        (
            {
                "DiscoveredDevices": [
                    {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
                    {"Source": "cdi", "ID": "amd.com/gpu=0"},
                ]
            },
            ("nvidia.com/gpu=0",),
        ),
    ],
)
def test_cdi_devices_are_those_that_the_engine_takes(tmp_path: Path, info: dict[str, Any], expected: Any) -> None:
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices: [{name: '0'}, {name: all}]\n")
    (tmp_path / "other.json").write_text(json.dumps({"kind": "vendor.com/net", "devices": [{"name": "eth1"}]}))
    (tmp_path / "torn.yaml").write_text("kind: [")
    (tmp_path / "README").write_text("not a specification")
    told = {
        key: [each.format(folder=tmp_path) if isinstance(each, str) else each for each in value]
        for key, value in info.items()
    }

    assert gpus._cdi_names(told) == expected


@pytest.mark.train
def test_a_run_whose_nodes_do_not_see_their_gpu_ends_before_the_script_with_its_mps_stopped_in_order(
    tmp_path: Path,
) -> None:
    """The plan is for plain processes on a machine with a GPU; this machine may have none, or another one."""
    control = tmp_path / "nvidia-cuda-mps-control"
    stub = Path(__file__).parents[2] / "node" / "stub_mps_control.py"
    control.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stub}" "$@"\n')
    control.chmod(0o755)
    (tmp_path / "train.py").write_text("print('the script ran')\n")
    here = inspect_host(tmp_path, python=sys.executable, with_docker=False)
    assert here.python
    toolkit = replace(RAW, mps_control=str(control))
    host = replace(here, gpus=h200s(1, toolkit=toolkit), python=replace(here.python, torch_cuda="13.0"))
    folder = RunFolder(runs_folder(tmp_path) / f"gpu-{token_hex(3)}")
    spec = ClusterSpec(nodes=2, engine="local", script="train.py")
    program = Program(target="train.py", folder=str(tmp_path))

    class RequestOnGpus(Request):
        def plan(self, *, run: str, run_folder: Path, portable: bool = False) -> tuple[Plan, Host]:
            return make_plan(self.spec, host, run=run, run_folder=str(run_folder), program=program), host

    report = Session(RequestOnGpus(spec=spec, folder=tmp_path), name=folder.name).run(QuietListener())
    events = [json.loads(line) for file in (folder.path / "events").iterdir() for line in file.read_text().splitlines()]

    assert report.verdict == "failed"
    assert report.cause
    assert f"but {uuid(0)} was planned" in report.cause.message
    assert [node.gpus for node in report.nodes] == [(uuid(0),), (uuid(0),)]
    assert [event["data"]["phase"] for event in events if event["kind"] == "mps"] == ["ready"]
    assert not [event for event in events if event["kind"] == "rank-started"]
    assert (folder.path / "logs" / "mps.out").read_text() == "told to quit\n"
