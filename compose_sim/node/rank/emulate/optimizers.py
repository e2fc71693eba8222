"""Run torch's optimizers without the mode, which would cost too much for their hundreds of small operations."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch

from .devices import CPU
from .meeting import tensors_in
from .tags import device_of, put
from .tensors import paused, resumed

_torch: Any = torch


def _on_the_cpu(step: Callable[..., Any]) -> Callable[..., Any]:
    """Run a step of one of torch's optimizers on the real CPU.

    There it chooses the implementation for CPUs (`foreach`, CUDA's default, sums in another order), so that the weights
    are those of the same script on the CPU. Only if parameters are partly DTensors, which `foreach` refuses, CUDA's
    default is chosen, so that the script fails as on a GPU.
    """

    @functools.wraps(step)
    def on_the_cpu(self: Any, closure: Any = None, **options: Any) -> Any:
        closure = (resumed(closure),) if callable(closure) else () if closure is None else (closure,)
        with torch._C.DisableTorchFunction(), _default_of_cuda(self):
            result = step(self, *closure, **options)
        _tag_state(self)
        return result

    return on_the_cpu


@contextmanager
def _default_of_cuda(optimizer: Any) -> Iterator[None]:
    """Let `foreach` be the default on the CPU too, if a group holds DTensors and plain tensors on emulated devices."""
    module: Any = sys.modules[torch.optim.Optimizer.__module__]
    name = "_get_foreach_kernels_supported_devices"
    if not hasattr(module, name) or not any(_is_mixed(group["params"]) for group in optimizer.param_groups):
        yield
        return
    supported = getattr(module, name)
    setattr(module, name, lambda: [*supported(), "cpu"])
    try:
        yield
    finally:
        setattr(module, name, supported)


def _is_mixed(parameters: list[Any]) -> bool:
    """Return whether some of these parameters are DTensors, some plain, and all on emulated devices."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    if tensor is None or len({isinstance(each, tensor.DTensor) for each in parameters}) < 2:
        return False
    return all(device_of(each) is not None for each in parameters)


def _tag_state(optimizer: Any) -> None:
    """Put the optimizer's state on the parameters' devices; the step count is on the CPU, with some exceptions."""
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
    """Patch torch's own optimizers, and the functions that use all gradients.

    Hooks before and after a step run outside `step`, and could not disable the mode. So `step` itself is wrapped,
    through the function that wraps that of every optimizer.
    """
    optimizer: Any = torch.optim.Optimizer
    real_wrap = optimizer.profile_hook_step

    def profile_hook_step(step: Any) -> Any:
        ours = getattr(step, "__module__", "").startswith("torch.optim.") and "." in step.__qualname__
        return real_wrap(_on_the_cpu(step) if ours else step)

    optimizer.profile_hook_step = staticmethod(profile_hook_step)
    optimizer.zero_grad = paused(optimizer.zero_grad)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_"):
            if hasattr(module, name):
                setattr(module, name, _where_the_first_is(getattr(module, name)))


def _where_the_first_is(function: Callable[..., Any]) -> Callable[..., Any]:
    run = paused(function)

    @functools.wraps(function)
    def without_mode(parameters: Any, *arguments: Any, **options: Any) -> Any:
        parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        result = run(parameters, *arguments, **options)
        first = next(iter(tensors_in((parameters,))), None)
        return result if first is None else put(result, first._composesim_device)

    return without_mode
