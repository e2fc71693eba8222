"""Let a script join process groups of any size: torch's fake group, whose collectives move nothing."""

from __future__ import annotations

import functools
import inspect
import os
from importlib import import_module
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore

from .traffic import Traffic

ddp: Any = import_module("torch.nn.parallel.distributed")
reducers: Any = import_module("torch.distributed").Reducer
_BACKEND = "fake"
_OF_MESHES = ("__init__", "__getitem__", "_flatten", "_unflatten", "from_group", "get_coordinate", "get_local_rank")


def install(traffic: Traffic, *, only_samples: bool = False) -> None:
    """Replace what makes groups, and what sends objects. DDP's own code runs, also its reducer in C++.

    With `only_samples`, DDP only holds its module: no rank gets to a step.
    """
    _replace(_initializer(dist.init_process_group), "init_process_group")
    _replace(_with_fake_backend(dist.new_group), "new_group")
    _replace(_get_backend, "get_backend")
    for name, function in (
        ("all_gather_object", _all_gather_object),
        ("gather_object", _gather_object),
        ("broadcast_object_list", _keep_objects),
        ("scatter_object_list", _scatter_object_list),
        ("monitored_barrier", _keep_objects),
    ):
        _replace(function, name)
    _let_ddp_take_fake_tensors(traffic)
    if only_samples:
        ddp.DistributedDataParallel.__init__ = _hold_module
    _make_meshes_for_real()


def _replace(function: Callable[..., Any], name: str) -> None:
    for module in (dist, dist.distributed_c10d):
        setattr(module, name, function)


_asked_for = [""]


def _initializer(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: Any = None, *_: Any, device_id: Any = None, **__: Any) -> None:
        """Join the world that the environment describes, whatever the rendezvous."""
        _asked_for[0] = str(backend or "")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        original(_BACKEND, store=FakeStore(), rank=rank, world_size=size)

    return init_process_group


def _with_fake_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, **more: Any
    ) -> Any:
        more.pop("device_id", None)
        return original(ranks, timeout, _BACKEND, None, **more)

    return new_group


def _get_backend(group: Any = None) -> str:
    """Return the backend that the script asked for: scripts choose devices by it."""
    own = "nccl" if torch.cuda.is_available() else "gloo"
    return _asked_for[0].rpartition(":")[2] or own


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * dist.get_world_size(group)


def _gather_object(
    obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * dist.get_world_size(group)


def _scatter_object_list(output: list[Any], given: Any = None, *_: Any, **__: Any) -> None:
    if given:
        output[0] = given[min(dist.get_rank(), len(given) - 1)]


def _keep_objects(*_: Any, **__: Any) -> None:
    """Leave what this rank has: a broadcast would bring what the source has."""


def _let_ddp_take_fake_tensors(traffic: Traffic) -> None:
    """Give the reducer real tensors where its C++ code reads values; of gradients it reads none."""
    verify, rebuild = ddp._verify_param_shape_across_processes, reducers._rebuild_buckets

    def _verify_param_shape_across_processes(*arguments: Any) -> Any:
        with unset_fake_temporarily():
            return verify(*arguments)

    def _rebuild_buckets(reducer: Any) -> bool:
        with unset_fake_temporarily(), traffic.happening_once():
            return bool(rebuild(reducer))

    ddp._verify_param_shape_across_processes = _verify_param_shape_across_processes
    reducers._rebuild_buckets = _rebuild_buckets


def _hold_module(wrapper: Any, module: Any, *_: Any, **__: Any) -> None:
    torch.nn.Module.__init__(wrapper)
    wrapper.module = module


def _make_meshes_for_real() -> None:
    """Give meshes real tensors: they read the ranks in them."""
    from torch.distributed import device_mesh

    mesh: Any = device_mesh.DeviceMesh
    for owner, name in [
        (device_mesh, "init_device_mesh"),
        *((mesh, name) for name in _OF_MESHES if name in vars(mesh)),
    ]:
        setattr(owner, name, _for_real(inspect.getattr_static(owner, name)))
    dist.init_device_mesh = device_mesh.init_device_mesh  # type: ignore[attr-defined]


def _for_real(original: Any) -> Any:
    function = getattr(original, "__func__", original)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments, **options)

    return staticmethod(call) if isinstance(original, staticmethod) else call
