"""When and how does the script make its process group?"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from .. import stacks, teardown
from ..imports import after_import
from ..watch import here, place


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)


def _after_distributed(module: ModuleType) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        watch = here()
        asked = dict(zip(("backend", "init_method", "timeout", "world_size", "rank"), arguments), **options)
        if watch is not None:
            backend, size = asked.get("backend"), asked.get("world_size")
            watch.events.emit("init", phase="started", backend=backend and str(backend), world_size=_positive(size))
            watch.note(
                "init",
                init_method=str(asked.get("init_method") or "env://"),
                rank=_positive(asked.get("rank"), least=0),
                world_size=_positive(size),
                master_addr=os.environ.get("MASTER_ADDR"),
                env_rank=os.environ.get("RANK"),
                env_world_size=os.environ.get("WORLD_SIZE"),
                store_host=_host(asked.get("store")),
                device=getattr(asked.get("device_id"), "index", None),
                at=place(),
            )
            watch.flush()
            stacks.start_helper()
        original(*arguments, **options)
        if watch is not None:
            watch.events.emit("init", phase="done", backend=module.get_backend(), world_size=module.get_world_size())
            watch.note(
                "group", rank=module.get_rank(), world_size=module.get_world_size(), backend=module.get_backend()
            )

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    destroy = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*arguments: Any, **options: Any) -> None:
        if here() is not None:
            teardown.let_gloo_finish()
        destroy(*arguments, **options)

    module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]


def _host(store: Any) -> str | None:
    """Where a store that the script made itself listens."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    return str(host) if host else None


def _positive(number: Any, *, least: int = 1) -> int | None:
    """What the script itself asks for; None where it leaves that to its environment (-1 for torch)."""
    return number if isinstance(number, int) and number >= least else None
