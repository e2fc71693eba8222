"""An exception that has a known remedy names it, and others get no hint."""

from __future__ import annotations

import pytest

from compose_sim.node.rank.debugging.hints import hint_for

TIMED_OUT = "The client socket has timed out after 60000ms while trying to connect to (master, 29501)."
VARIABLES = ("COMPOSESIM_ENGINE", "COMPOSESIM_EMULATED_GPUS", "COMPOSESIM_GPU_FRACTION", "COMPOSESIM_GPU_CROWD")


@pytest.mark.parametrize(
    ("error", "variables", "words"),
    [
        (RuntimeError(TIMED_OUT), {}, "--master node-0"),
        (RuntimeError(TIMED_OUT.replace("29501", "29500")), {}, ""),  # the store of composesim itself
        (RuntimeError(TIMED_OUT.replace("master", "db")), {}, ""),
        (RuntimeError(TIMED_OUT), {"COMPOSESIM_ENGINE": "local"}, ""),
        (RuntimeError(TIMED_OUT.replace("master", "node-0")), {"MASTER_ADDR": "node-0"}, ""),
        (RuntimeError("operator torchvision::nms does not exist"), {}, "torchvision"),
        (RuntimeError("Numpy is not available"), {"COMPOSESIM_ENGINE": "local"}, "pip install numpy"),
        (ValueError("boom"), {}, ""),
        (RuntimeError("CUDA error: invalid device ordinal"), {}, ""),  # the script has not asked for CUDA
    ],
)
def test_a_known_error_names_its_remedy(
    error: Exception, variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "master", "MASTER_PORT": "29500", **variables}.items():
        monkeypatch.setenv(name, value)

    assert words in hint_for(error)
    assert bool(hint_for(error)) == bool(words)
