"""How do optimizers step? As on the CPU: torch's own run without the mode, which their hundreds of small operations would pay for."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from .devices import CPU
from .meeting import tensors_in
from .tags import put
from .tensors import resumed

_torch: Any = torch


def _on_the_cpu(step: Callable[..., Any]) -> Callable[..., Any]:
    """
    One of torch's optimizers, on an honest CPU.

    It then chooses among its loops as it does there (`foreach` is CUDA's default, and sums in another order), so that the
    weights are those of the same script on the CPU.
    """

    @functools.wraps(step)
    def on_the_cpu(self: Any, closure: Any = None, **options: Any) -> Any:
        closure = (resumed(closure),) if callable(closure) else () if closure is None else (closure,)
        with torch._C.DisableTorchFunction():
            result = step(self, *closure, **options)
        _tag_state(self)
        return result

    return on_the_cpu


def _tag_state(optimizer: Any) -> None:
    """What an optimizer keeps for a parameter is where the parameter is; its count of steps is on the CPU, but for some."""
    for parameter, state in optimizer.state.items():
        tag = getattr(parameter, "_composesim_device", None)
        if tag is None or not isinstance(state, dict):
            continue
        for name, value in state.items():
            if isinstance(value, _torch.Tensor) and value._composesim_device is None:
                counts = name == "step" and not _counts_on_device(optimizer, parameter)
                put(value, CPU if counts else tag)


def _counts_on_device(optimizer: Any, parameter: Any) -> bool:
    return any(
        (group.get("fused") or group.get("capturable")) and any(each is parameter for each in group["params"])
        for group in optimizer.param_groups
    )


def install() -> None:
    """
    Have torch's own optimizers, and what walks all gradients beside them, run on an honest CPU.

    Hooks before and after a step run outside of `step`, where nothing could take the mode away; so it is `step` itself,
    through the function that wraps every optimizer's.
    """
    optimizer: Any = torch.optim.Optimizer
    real_wrap = optimizer.profile_hook_step

    def profile_hook_step(step: Any) -> Any:
        ours = getattr(step, "__module__", "").startswith("torch.optim.") and "." in step.__qualname__
        return real_wrap(_on_the_cpu(step) if ours else step)

    optimizer.profile_hook_step = staticmethod(profile_hook_step)
    optimizer.zero_grad = _without_mode(optimizer.zero_grad)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
            if hasattr(module, name):
                setattr(module, name, _where_the_first_is(getattr(module, name)))


def _without_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def without_mode(*arguments: Any, **options: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*arguments, **options)

    return without_mode


def _where_the_first_is(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def without_mode(parameters: Any, *arguments: Any, **options: Any) -> Any:
        parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        with torch._C.DisableTorchFunction():
            result = function(parameters, *arguments, **options)
        first = next(iter(tensors_in((parameters,))), None)
        return result if first is None else put(result, first._composesim_device)

    return without_mode
