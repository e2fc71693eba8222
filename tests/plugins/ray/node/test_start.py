"""Start a Ray node with the resources of the machine, or report why that is impossible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compose_sim import assets
from compose_sim.node.master.driver_membership import TOO_OLD, StartError
from compose_sim.node.master.server import free_port
from compose_sim.plugins.ray.node import start


def a_ray_of(version: str, folder: Path) -> Path:
    """Return a folder with a distribution of Ray in this version, and nothing else."""
    info = folder / f"ray-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    return folder


def test_a_ray_without_tokens_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.9 is older than 2.52."""
    monkeypatch.syspath_prepend(a_ray_of("2.9.3", tmp_path))

    with pytest.raises(StartError, match=r"ray 2\.9\.3 is too old: 2\.52 or newer is needed") as raised:
        start.require_ray()
    assert raised.value.code == TOO_OLD


def test_the_object_store_lies_within_what_the_node_has_of_shared_memory() -> None:
    """Ray would use 30% of the memory, and complain if /dev/shm is smaller."""
    gibibyte = 1 << 30

    assert start.object_store_of(4 * gibibyte, 8 * gibibyte) == 4 * gibibyte * 3 // 10
    assert start.object_store_of(64 * gibibyte, gibibyte) == gibibyte * 9 // 10
    assert start.object_store_of(gibibyte // 8, gibibyte) == 80 << 20, "Ray takes no less"


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, 0),
    ],
)
def test_a_node_has_the_gpus_that_it_was_bound_to(
    variables: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert start.visible_gpus() == count


def test_rays_folder_on_a_shared_machine_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray makes its folders writable for everybody, so the folder above must be private."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "short"))

    folder = start.make_folder("node-1", shared=True)

    assert folder == tmp_path / "short" / "node-1"
    assert (tmp_path / "short").stat().st_mode & 0o777 == 0o700
    (tmp_path / "short").chmod(0o755)
    with pytest.raises(start.RayError, match="is not a folder that only this user can enter"):
        start.make_folder("node-2", shared=True)


def test_a_node_without_ray_reports_it(tmp_path: Path) -> None:
    """The real program, in a Python without Ray."""
    done = run_member(tmp_path, "--patience=1", python=(sys.executable, "-S"))

    assert done.returncode == 1
    assert f"composesim: ray is not installed for {sys.executable}" in done.stderr


def run_member(folder: Path, *options: str, python: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run Ray's node without a head."""
    variables = {
        **os.environ,
        "COMPOSESIM_NODE": "node-0",
        "COMPOSESIM_NODE_RANK": "0",
        "COMPOSESIM_DIR": str(folder),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port("127.0.0.1")),
        "RAY_TMPDIR": str(folder / "short"),
    }
    words = ("--cpus=1", "--memory=0", "--shm=100000000", "--share=1", "--free-ports", *options)
    return subprocess.run(
        [*python, assets.node_code() / "__main__.py", "ray-member", *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
