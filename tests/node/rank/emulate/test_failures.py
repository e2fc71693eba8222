"""An error of the emulation says so; CUDA's errors and those of the script do not."""

from __future__ import annotations

import pytest

from compose_sim.node.rank.emulate import failures
from compose_sim.node.shared.emulation import VARIABLE


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (AttributeError("module 'torch._C' has no attribute '_cuda_resetPeakHostMemoryStats'"), True),
        (AssertionError("Torch not compiled with CUDA enabled"), True),
        (TypeError("Parameter.__new__() got an unexpected keyword argument '_composesim_device'"), True),
        (
            NotImplementedError(
                "Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy registered."
            ),
            True,
        ),
        (RuntimeError("Expected all tensors to be on the same device"), False),
        (AttributeError("'NoneType' object has no attribute 'cuda'"), False),
        (KeyError("loss"), False),
    ],
)
def test_only_gaps_of_the_emulation_say_so(error: Exception, is_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert bool(failures.gap(error)) == is_own
    monkeypatch.setenv(VARIABLE, "0")
    assert failures.gap(error) == ""
