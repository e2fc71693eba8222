"""What does a script do, seen from inside its rank? The observers see it; this sets them up before it and ends them after it."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from typing import Any

from ..shared import emulation
from ..shared.event_log import EventLog
from ..shared.import_hooks import after_import
from ..shared.progress_page import ProgressPage
from . import context as watching
from . import fault_handler, stack_signal
from .context import Watch
from .observations import Observations
from .observers import OBSERVERS

_VERSIONS_TOLD = "probe.versions_told"
_first = False


def install() -> None:
    """Set the hooks, each as soon as the module it belongs to is imported."""
    for name in ("torch", "paddle"):
        after_import(name, lambda _: _tell_versions())
    for observer in OBSERVERS:
        observer.install()


def begin(events: EventLog, *, first: bool) -> None:
    """The rank begins; the `first` on its node tells the versions as well."""
    global _first
    _first = first
    environment = os.environ
    whose = (events.folder, events.node, events.rank or 0, events.generation or 0)
    watch = Watch(
        events=events,
        observations=Observations(*whose),
        progress=ProgressPage(*whose),
        mode=environment.get("COMPOSESIM_CHECK", ""),
    )
    watching.begin(watch)
    stack_signal.install(watch.progress)
    fault_handler.install(events)
    given = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    watch.note("given", node=events.node, pid=os.getpid(), **{name.lower(): environment.get(name) for name in given})
    for observer in OBSERVERS:
        _survive(observer, "begin", watch)
    if "torch" in sys.modules:
        _tell_versions()


def end() -> None:
    """The script's main code has ended."""
    watch = watching.here()
    if watch is None:
        return
    _tell_versions()
    for observer in OBSERVERS:
        _survive(observer, "end", watch)
    watch.note("end", steps=watch.steps, synchronisations=watch.synchronisations)
    watch.flush()


def _survive(observer: Any, name: str, watch: Watch) -> None:
    """Whatever an observer does not understand ends the observer, never the script."""
    function = getattr(observer, name, None)
    try:
        if function is not None:
            function(watch)
    except Exception:  # noqa: BLE001 - this runs inside somebody's training
        watch.note("observer-failed", observer=observer.__name__, traceback=traceback.format_exc())


def _tell_versions() -> None:
    watch = watching.here()
    if watch is not None and _first and not watch.memory.get(_VERSIONS_TOLD):
        watch.memory[_VERSIONS_TOLD] = True
        watch.events.emit("environment", **_versions())


def _versions() -> dict[str, Any]:
    versions: dict[str, Any] = {"torch": None, "cuda": None, "cudnn": None, "nccl": None}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        versions["cuda"] = emulation.WORDS if emulation.is_on() else torch.version.cuda
    if versions["cuda"] and not emulation.is_on():
        versions["cudnn"] = torch.backends.cudnn.version()  # type: ignore[union-attr]
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[union-attr]
    paddle = sys.modules.get("paddle")
    if paddle is not None:
        versions["paddle"] = str(paddle.__version__)
    return {**versions, "python": platform.python_version(), "platform": platform.platform()}
