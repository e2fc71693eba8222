"""Emulate what a training step uses: autocast, SyncBatchNorm, and optimizers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

import torch

from ...shared.import_hooks import wrap
from .devices import CPU, device_of, put
from .meeting import tensors_in
from .tensors import Handler, for_call, paused, resumed

_Tensor: Any = torch.Tensor


def cast_as_on_the_cpu() -> None:
    """Let every autocast for CUDA enter one for the CPU with the same type, while both are reported as enabled.

    C++ uses the CPU's state, because the CPU computes; scripts ask for CUDA's. autocast has no hook, and it is patched in place
    because other classes inherit from it.
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
    def leave(original: Any, self: Any, exc_type: Any, exc_val: Any, exc_tb: Any) -> Any:
        if self.device == "cuda":
            original(self._composesim_inner.pop(), exc_type, exc_val, exc_tb)
        return original(self, exc_type, exc_val, exc_tb)

    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    scaler: Any = torch.amp.grad_scaler.GradScaler
    scaler._unscale_grads_ = paused(scaler._unscale_grads_)  # it groups all gradients by real device


def _kernel(function: Any) -> Callable[[Handler], Handler]:
    """Let the decorated function answer the calls of one of SyncBatchNorm's five functions, which torch has only for CUDA."""

    def register(answer: Handler) -> Handler:
        @for_call(function)
        def on_its_device(func: Any, input: Any, /, *args: Any, **kwargs: Any) -> Any:
            return put(answer(input, *args, **kwargs), input._composesim_device)

        return answer

    return register


def _per_channel(values: Any, like: torch.Tensor) -> Any:
    return values.reshape(1, -1, *(1,) * (like.dim() - 2)).to(_exact(like))


def _others(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _exact(tensor: torch.Tensor) -> torch.dtype:
    """Return the type to sum in, as CUDA's kernels do."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


@_kernel(torch.batch_norm_stats)
def _batch_norm_stats(input: torch.Tensor, eps: float) -> Any:
    """Return the mean and inverse deviation of each channel of this rank's batch."""
    variance, mean = torch.var_mean(input.to(_exact(input)), dim=_others(input), unbiased=False)
    return mean, torch.rsqrt(variance + eps)


@_kernel(torch.batch_norm_gather_stats_with_counts)
def _batch_norm_gather_stats_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> Any:
    """Return the mean and inverse deviation of all ranks' batches together, and update the running averages."""
    weights = counts.reshape(-1, 1).to(mean.dtype)
    total = weights.sum()
    whole = (mean * weights).sum(0) / total
    squares = (invstd.pow(-2) - eps + (mean - whole).pow(2)) * weights
    variance = squares.sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(whole.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = squares.sum(0) / (total - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return whole, torch.rsqrt(variance + eps)


@_kernel(torch.batch_norm_elemt)
def _batch_norm_elemt(
    input: torch.Tensor, weight: Any, bias: Any, mean: torch.Tensor, invstd: torch.Tensor, eps: float
) -> Any:
    """Return the normalized batch."""
    scale = invstd if weight is None else invstd * weight
    result = (input.to(_exact(input)) - _per_channel(mean, input)) * _per_channel(scale, input)
    return (result if bias is None else result + _per_channel(bias, input)).to(input.dtype)


@_kernel(torch.batch_norm_backward_reduce)
def _batch_norm_backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Any,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> Any:
    """Return the sums that all ranks must add up, and the gradients of weight and bias."""
    gradient = grad_out.to(_exact(grad_out))
    sum_dy = gradient.sum(_others(grad_out))
    sum_dy_xmu = (gradient * (input.to(gradient.dtype) - _per_channel(mean, input))).sum(_others(grad_out))
    grad_weight = (sum_dy_xmu * invstd).to(weight.dtype) if weight is not None and weight_g else None
    grad_bias = sum_dy.to(weight.dtype) if weight is not None and bias_g else None
    return sum_dy, sum_dy_xmu, grad_weight, grad_bias


@_kernel(torch.batch_norm_backward_elemt)
def _batch_norm_backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Any,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> Any:
    """Return the gradient of the batch."""
    total = count.sum().to(mean.dtype)
    gradient = grad_out.to(_exact(grad_out))
    centered = input.to(gradient.dtype) - _per_channel(mean, input)
    inner = gradient - _per_channel(sum_dy / total, input)
    inner = inner - centered * _per_channel(invstd.pow(2) * sum_dy_xmu / total, input)
    return (inner * _per_channel(invstd if weight is None else invstd * weight, input)).to(input.dtype)


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
            if isinstance(value, _Tensor) and value._composesim_device is None:
                counts = name == "step" and not _counts_on_device(optimizer, parameter)
                put(value, CPU if counts else tag)


def _counts_on_device(optimizer: Any, parameter: Any) -> bool:
    return any(
        (group.get("fused") or group.get("capturable")) and any(each is parameter for each in group["params"])
        for group in optimizer.param_groups
    )


def step_without_mode() -> None:
    """Patch torch's own optimizers, and the functions that use all gradients: the mode would cost too much for their small operations.

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
    def without_mode(*arguments: Any, **options: Any) -> Any:
        name = next((each for each in ("parameters", "tensors") if each in options), "")
        given = options.pop(name) if name else arguments[0]
        given = given if isinstance(given, torch.Tensor) else list(given)
        result = run(given, *(arguments if name else arguments[1:]), **options)
        first = next(iter(tensors_in((given,))), None)
        return result if first is None else put(result, first._composesim_device)

    return without_mode
