"""Implement the five functions of SyncBatchNorm for the CPU, which torch has only for CUDA."""

from __future__ import annotations

from typing import Any

import torch

from .tags import put
from .tensors import special


def _per_channel(values: Any, like: torch.Tensor) -> Any:
    return values.reshape(1, -1, *(1,) * (like.dim() - 2)).to(_exact(like))


def _others(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _exact(tensor: torch.Tensor) -> torch.dtype:
    """Return the type to sum in, as CUDA's kernels do."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def batch_norm_stats(input: torch.Tensor, eps: float) -> Any:
    """Return the mean and inverse deviation of each channel of this rank's batch."""
    variance, mean = torch.var_mean(input.to(_exact(input)), dim=_others(input), unbiased=False)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
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


def batch_norm_elemt(
    input: torch.Tensor,
    weight: Any,
    bias: Any,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> Any:
    """Return the normalized batch."""
    scale = invstd if weight is None else invstd * weight
    result = (input.to(_exact(input)) - _per_channel(mean, input)) * _per_channel(scale, input)
    return (result if bias is None else result + _per_channel(bias, input)).to(input.dtype)


def batch_norm_backward_reduce(
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


def batch_norm_backward_elemt(
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


def install() -> None:
    """Register the functions."""
    for function in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        special[getattr(torch, function.__name__)] = _answering(function)


def _answering(function: Any) -> Any:
    def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return put(function(*args, **kwargs), args[0]._composesim_device)

    return answer
