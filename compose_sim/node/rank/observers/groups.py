"""Record how the script makes the process group, and which libraries report metrics for it."""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import ModuleType
from typing import Any

from ...records.devices_and_files import TrainerLibraries
from ...records.process_groups import InitProcessGroup, ProcessGroup
from ...records.record import Place
from ...shared import emulation
from ...shared.frames import is_user_code
from .. import flight_recorder, stack_signal, teardown
from ..context import RankContext, place, variable_number
from ..torch_hooks import points

_LIBRARIES = ("transformers", "lightning", "pytorch_lightning", "accelerate")  # which report by themselves
_OF_NODES = re.compile(
    r"local_?rank|is_local|local_(main|zero|process|world)|on_local|node_?rank|\.print\(", re.IGNORECASE
)
_MAX_FILES = 100


def install() -> None:
    points.GROUP_INITIALIZED.subscribe(_initialize)
    points.GROUP_DESTROYED.subscribe(_destroy)


def end(context: RankContext) -> None:
    """Record whether the user's code itself ever asks which rank of a node it is, or leaves that to a library."""
    libraries = tuple(name for name in _LIBRARIES if name in sys.modules)
    if libraries:
        files = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
        own = [file for file in files if file.endswith(".py") and is_user_code(file)][:_MAX_FILES]
        asks = any(_OF_NODES.search("".join(linecache.getlines(file))) for file in own)
        context.note(TrainerLibraries(libraries, asks))


def _initialize(context: RankContext, call: points.TorchCall) -> points.Steps:
    module = call.module
    flight_recorder.enable(sys.modules["torch"])
    _before_init(context, call, place())
    yield
    backend, size = module.get_backend(), module.get_world_size()
    context.progress.set("on_device", int(_uses_device(module)))
    context.events.emit("init", phase="done", backend=backend, world_size=size)
    context.note(ProcessGroup(size, backend))


def _destroy(context: RankContext, call: points.TorchCall) -> points.Steps:
    teardown.let_gloo_finish()
    context.progress.set("leaving", 1)
    try:
        yield
    finally:
        context.progress.set("leaving", 0)
        context.progress.set("on_device", int(_uses_device(call.module)))


def _uses_device(module: ModuleType) -> bool:
    """Return whether collectives may run on a GPU: NCCL is a backend of the group, if only for some tensors."""
    if emulation.is_on() or not module.is_initialized():
        return False
    return "nccl" in getattr(module, "get_backend_config", module.get_backend)()


def _before_init(context: RankContext, call: points.TorchCall, at: Place | None) -> None:
    backend, size = call.value("backend"), _at_least(1, call.value("world_size"))
    device = getattr(call.value("device_id"), "index", None)
    context.events.emit("init", phase="started", backend=backend and str(backend), world_size=size)
    context.note(
        InitProcessGroup(
            init_method=str(call.value("init_method") or "env://"),
            given_rank=_at_least(0, call.value("rank")),
            given_world_size=size,
            env_rank=variable_number("RANK"),
            env_world_size=variable_number("WORLD_SIZE"),
            master_addr=os.environ.get("MASTER_ADDR"),
            store_host=_host(call.value("store")),
            device=device if isinstance(device, int) else None,
            at=at,
        )
    )
    context.flush()
    stack_signal.start_helper(context.look_at)


def _host(store: Any) -> str | None:
    """Return the address of a store that the script created."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return str(host) if host else None


def _at_least(least: int, number: Any) -> int | None:
    """Return what the script itself asks for; None if it leaves that to the environment (-1 for torch)."""
    return number if isinstance(number, int) and number >= least else None
