"""NCCL_SOCKET_IFNAME chooses interfaces by the rules of NCCL, and fails as NCCL does if it names none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from compose_sim.node.rank.emulate.interfaces import chosen
from tests.builders import PATIENCE_S, ROOT

pytestmark = pytest.mark.train

PROGRAM = """
from compose_sim.node.rank import emulate
emulate.install()
import torch, torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="cuda"))
"""


@pytest.mark.parametrize(("interface", "code"), [("lo", 0), ("no-such-interface", 1)])
def test_an_interface_that_does_not_exist_fails_in_the_first_collective(interface: str, code: int) -> None:
    variables = {"COMPOSESIM_EMULATED_GPUS": "1", "NCCL_SOCKET_IFNAME": interface, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-c", PROGRAM)
    done = subprocess.run(command, env={**os.environ, **variables}, text=True, capture_output=True, timeout=PATIENCE_S)

    assert done.returncode == code
    assert ("Bootstrap : no socket interface found" in done.stderr) == bool(code)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth", []),
        ("^eth,docker", ["lo"]),
        ("^=eth0", ["lo", "eth1", "docker0"]),
        ("ens6,lo", ["lo"]),
        ("ens6", []),
        ("eth1:8080", ["eth1"]),
    ],
)
def test_the_interfaces_of_nccl(wanted: str, found: list[str]) -> None:
    assert chosen(wanted, ["lo", "eth0", "eth1", "docker0"]) == found
