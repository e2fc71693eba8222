"""Run autocast("cuda") as autocast("cpu") with the same type, while both are reported as enabled."""

from __future__ import annotations

from typing import Any

import torch

from ...shared.import_hooks import wrap
from .tensors import paused


def install() -> None:
    """Let every autocast for CUDA enter one for the CPU.

    C++ uses the CPU's state, because the CPU computes; scripts ask for CUDA's. autocast has no hook, and it is patched
    in place because other classes inherit from it.
    """
    autocast: Any = torch.amp.autocast_mode.autocast

    @wrap(autocast, "__enter__")
    def enter(original: Any, self: Any) -> Any:
        entered = original(self)
        if self.device == "cuda":
            half = self.fast_dtype in (torch.bfloat16, torch.float16)  # CUDA also accepts float32: nothing changes
            dtype = self.fast_dtype if half else None
            inner = autocast("cpu", dtype=dtype, enabled=self._enabled and half, cache_enabled=self._cache_enabled)
            original(inner)
            self.__dict__.setdefault("_composesim_inner", []).append(inner)
        return entered

    @wrap(autocast, "__exit__")
    def leave(original: Any, self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            original(self._composesim_inner.pop(), *error)
        return original(self, *error)

    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    scaler: Any = torch.amp.grad_scaler.GradScaler
    scaler._unscale_grads_ = paused(scaler._unscale_grads_)  # it groups all gradients by real device
