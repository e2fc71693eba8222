"""When and how does the script make its process group?"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
from types import ModuleType
from typing import Any

from ...shared.frames import is_user_code
from ...shared.import_hooks import after_import
from .. import stack_signal, teardown
from ..context import Watch, here, place

_LIBRARIES = ("transformers", "lightning", "pytorch_lightning", "accelerate")  # which report by themselves
_OF_NODES = re.compile(
    r"local_?rank|is_local|local_(main|zero|process|world)|on_local|node_?rank|\.print\(", re.IGNORECASE
)
_MOST_FILES = 100


def install() -> None:
    after_import("torch.distributed.distributed_c10d", _after_distributed)


def end(watch: Watch) -> None:
    """Whether the person's own code ever asks which rank of a node it is, or leaves that to a library."""
    libraries = [name for name in _LIBRARIES if name in sys.modules]
    if libraries:
        files = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
        own = [file for file in files if file.endswith(".py") and is_user_code(file)][:_MOST_FILES]
        asks = any(_OF_NODES.search("".join(linecache.getlines(file))) for file in own)
        watch.note("libraries", names=libraries, asks_for_node=asks)


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
            stack_signal.start_helper()
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
