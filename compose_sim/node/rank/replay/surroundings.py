"""Describe the models around an optimizer: how they are wrapped and sharded decides what one rank can repeat, and what ranks share."""

from __future__ import annotations

from typing import Any

import torch

from ...records.replays import RecordedModels
from . import shards
from .gradients import parameters_of
from .wrapped_models import WrappedModels, divides_by_all_ranks, hook_name, models_of, shard_among_all_ranks


def describe(optimizer: Any, number: int, models: WrappedModels) -> tuple[RecordedModels, dict[int, shards.FlatPart]]:
    """Return the description of the models around an optimizer of this number, and the parts of flat parameters."""
    parallel, fully_sharded, flat = models.parallel, models.fully_sharded, shards.flat_parts(models.flat)
    parameters = parameters_of(optimizer)
    held = {id(parameter) for model in parallel for parameter in model.parameters()}
    found = RecordedModels(
        optimizer=number,
        optimizer_types=tuple(kind.__name__ for kind in type(optimizer).__mro__),
        ranks=tuple(torch.distributed.get_world_size(model.process_group) for model in parallel),
        batchnorm=tuple(_local_batchnorm(parallel)),
        hooks=tuple(hook_name(hook) for model in parallel for hook in getattr(model, "_comm_hooks", [])),
        sharded=any(shards.is_sharded(each, flat) for each in parameters),
        divided_by_fsdp=shard_among_all_ranks(fully_sharded),
        averaged=bool(fully_sharded) and all(map(divides_by_all_ranks, fully_sharded)),
        covered=all(id(each) in held for each in parameters if each.requires_grad),
    )
    return found, flat


def _local_batchnorm(parallel: list[Any]) -> list[str]:
    """Return the BatchNorm modules that train by the batch of this rank."""
    modules = [each for model in parallel for each in model.named_modules()]
    if not parallel:
        modules = [(type(each).__name__, each) for each in models_of("torch.nn.modules.batchnorm", "_BatchNorm")]
    return [
        name
        for name, module in modules
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and not isinstance(module, torch.nn.SyncBatchNorm)
        and module.training
    ]
