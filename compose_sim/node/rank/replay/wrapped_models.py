"""Find the models that DistributedDataParallel and FSDP wrap, and what surrounds their optimizers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...records.replays import RecordedModels
from ..tracked import parameters_of
from . import shards


def models_of(module: str, name: str) -> list[Any]:
    """Return all living models of a class, without importing what the script has not imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return [each for each in gc.get_objects() if issubclass(type(each), kind)] if isinstance(kind, type) else []


class WrappedModels(NamedTuple):
    """All living models that the script has wrapped, and the modules that FSDP shards."""

    parallel: list[Any]  # by DistributedDataParallel
    flat: list[Any]  # by the first FSDP
    sharded: list[Any]  # by the second one

    @property
    def fully_sharded(self) -> list[Any]:
        """Those of either FSDP."""
        return [*self.flat, *self.sharded]


def wrapped_models() -> WrappedModels:
    """Find them. This looks at every object of the process, so call it once for several questions."""
    return WrappedModels(
        models_of("torch.nn.parallel.distributed", "DistributedDataParallel"),
        models_of("torch.distributed.fsdp", "FullyShardedDataParallel"),
        models_of("torch.distributed.fsdp", "FSDPModule"),
    )


def names_of_parameters() -> dict[int, str]:
    """Return the name of each parameter of a wrapped model, as the script knows it, by the id of the parameter."""
    found: dict[int, str] = {}
    models = wrapped_models()
    for model in [*models.parallel, *models.fully_sharded]:
        for name, parameter in model.named_parameters():
            name = name.replace("_fsdp_wrapped_module.", "")
            found[id(parameter)] = max(name, found.get(id(parameter), ""), key=len)
    return {key: name.replace("module.", "", 1).replace("_orig_mod.", "") for key, name in found.items()}


def computes_low(model: Any) -> bool:
    """Return whether a module of either FSDP computes or reduces in fewer digits than its parameters have."""
    policy = model.mixed_precision if hasattr(model, "mixed_precision") else model._get_fsdp_state()._mp_policy
    low = (torch.float16, torch.bfloat16)
    return getattr(policy, "param_dtype", None) in low or getattr(policy, "reduce_dtype", None) in low


def hook_name(hook: Any) -> str:
    """Return the name of a communication hook."""
    function = hook[0] if isinstance(hook, tuple) else hook
    return getattr(function, "__qualname__", None) or type(function).__name__


def shard_among_all_ranks(fully_sharded: Sequence[Any]) -> bool:
    """Return whether there are FSDP models, and each smaller group of the script is one of the mesh over which they are sharded."""
    from torch.distributed import distributed_c10d, get_rank, get_world_size

    copies, parts = replicas_of(fully_sharded), _mesh_group(fully_sharded, "shard_process_group")
    of_mesh = {copies, parts} if len(copies) * len(parts) == get_world_size() else set()
    groups = [tuple(ranks) for ranks in distributed_c10d._world.pg_group_ranks.values() if get_rank() in ranks]
    return bool(fully_sharded) and all(len(each) == get_world_size() or each in of_mesh for each in groups)


def replicas_of(sharded: Sequence[Any]) -> tuple[int, ...]:
    """Return the ranks that hold the same shards as this one, if FSDP2 shards all models over a mesh with copies."""
    return _mesh_group(sharded, "replicate_process_group")


def _mesh_group(sharded: Sequence[Any], name: str) -> tuple[int, ...]:
    """Return the ranks of a group of the mesh over which FSDP2 shards all these models; none if it is not the same for all."""
    infos = [getattr(group, "mesh_info", None) for each in sharded for group in _parameter_groups(each)]
    groups: list[Any] = [getattr(each, name, None) for each in infos if each is not None]
    if not groups or None in groups:
        return ()
    found = {tuple(torch.distributed.get_process_group_ranks(each)) for each in groups}
    return found.pop() if len(found) == 1 else ()


def _parameter_groups(model: Any) -> list[Any]:
    """Return the groups in which FSDP2 gathers a model's parameters; the first FSDP has none."""
    if not hasattr(model, "_get_fsdp_state"):
        return []
    state = model._get_fsdp_state()
    return [*(getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)])]


def divides_by_all_ranks(model: Any) -> bool:
    """Return whether a module of either FSDP takes the mean of the gradients, and the script has not set another divisor."""
    if hasattr(model, "_gradient_predivide_factor"):
        return getattr(model, "_comm_hook", None) is None
    names = ("gradient_divide_factor", "reduce_scatter_divide_factor", "reduce_scatter_reduce_op")
    return not any(getattr(group, name, None) for group in _parameter_groups(model) for name in names)


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
        replicas=replicas_of(models.sharded),
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
