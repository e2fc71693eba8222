"""How does autocast("cuda") compute? As autocast("cpu") with the same type, while both say that they are on."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """
    Let every autocast for CUDA enter one for the CPU inside it.

    The state that C++ looks at is the CPU's, since that is what computes; the state that scripts ask for is CUDA's. There is no
    hook: autocast is a class of torch's, which others inherit from.
    """
    autocast: Any = torch.amp.autocast_mode.autocast
    real_enter, real_exit = autocast.__enter__, autocast.__exit__

    @functools.wraps(real_enter)
    def enter(self: Any) -> Any:
        entered = real_enter(self)
        if self.device == "cuda":
            half = self.fast_dtype in (
                torch.bfloat16,
                torch.float16,
            )  # CUDA takes float32 too, and changes nothing then
            dtype = self.fast_dtype if half else None
            inner = autocast("cpu", dtype=dtype, enabled=self._enabled and half, cache_enabled=self._cache_enabled)
            real_enter(inner)
            self.__dict__.setdefault("_composesim_inner", []).append(inner)
        return entered

    @functools.wraps(real_exit)
    def leave(self: Any, *error: Any) -> Any:
        if self.device == "cuda":
            real_exit(self._composesim_inner.pop(), *error)
        return real_exit(self, *error)

    autocast.__enter__, autocast.__exit__ = enter, leave
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    scaler: Any = torch.amp.grad_scaler.GradScaler
    scaler._unscale_grads_ = _without_mode(scaler._unscale_grads_)


def _without_mode(function: Any) -> Any:
    """It walks all gradients, and keeps what it found by the device they are really on."""

    @functools.wraps(function)
    def without_mode(*arguments: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*arguments, **options)

    return without_mode
