"""Set up the observers before a rank's script, and end them after the script."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from ..records.script import FeatureOff, LaunchEnvironment, ScriptEnd
from ..shared import emulation
from ..shared.event_log import EventLog
from ..shared.frames import describe
from ..shared.progress_page import ProgressPage
from . import context as rank_context
from . import fault_handler, flight_recorder, slow_gpu, stack_signal
from .context import RankContext, variable_number
from .gpu_limits import loaded_library
from .observations import Observations
from .observers import OBSERVERS
from .torch_hooks import after_import, features, lazy_compiler, mistakes

_VERSIONS_EMITTED = "instrument.versions_emitted"
_first = False


def install() -> None:
    """Set the hooks, each as soon as the module it belongs to is imported."""
    for name in ("torch", "paddle"):
        after_import(name, lambda _: _emit_versions())
    lazy_compiler.install()
    slow_gpu.install()
    for observer in OBSERVERS:
        if hasattr(observer, "install"):
            observer.install()


def begin(events: EventLog, *, first: bool) -> None:
    """Begin to observe this process as a rank. The `first` rank of a node also emits the versions of the libraries."""
    global _first
    _first = first
    for observer in OBSERVERS:  # before this process has other threads
        if hasattr(observer, "enter"):
            observer.enter()
    names = (events.folder, events.node, events.rank or 0, events.generation or 0)
    context = RankContext(
        events=events,
        observations=Observations(*names),
        progress=ProgressPage(*names),
        mode=os.environ.get("COMPOSESIM_CHECK", ""),
    )
    rank_context.begin(context)
    features.report_to(_report_off)
    stack_signal.install(context.progress)
    fault_handler.install(events)
    context.note(
        LaunchEnvironment(
            local_rank=variable_number("LOCAL_RANK"),
            world_size=variable_number("WORLD_SIZE"),
            local_world_size=variable_number("LOCAL_WORLD_SIZE"),
            master_addr=os.environ.get("MASTER_ADDR"),
        )
    )
    for observer in OBSERVERS:
        _call(observer, "begin", context)
    mistakes.begin()
    if "torch" in sys.modules:
        _emit_versions()


def end() -> None:
    """End observing: the script's main code has ended."""
    context = rank_context.here()
    if context is None:
        return
    _emit_versions()
    context.emit_step()
    context.guard(flight_recorder.__name__, _note_collectives)
    for observer in OBSERVERS:
        _call(observer, "end", context)
    context.note(ScriptEnd(_raised(), context.steps, context.synchronizations))
    context.flush()


def _note_collectives(context: RankContext) -> None:
    """Note which collectives are pending, with a dump if the script raised: from here on, the interpreter may end."""
    context.progress.set("leaving", 1)
    flight_recorder.answer(context.progress)
    if _raised() or context.progress.get("pending") or context.progress.pending_path.exists():
        flight_recorder.dump(context.progress)


def _call(observer: Any, name: str, context: RankContext) -> None:
    function = getattr(observer, name, None)
    if function is not None:
        context.guard(observer.__name__, function)


def _report_off(feature: str, sentence: str, traceback: str) -> None:
    """Report a feature that torch does not support, or whose code has raised."""
    context = rank_context.here()
    if context is not None:
        context.note(FeatureOff(feature, sentence, traceback))
        context.events.emit("feature-off", feature=feature, message=sentence)


def _raised() -> str | None:
    """Return the exception that ended the script, if one did."""
    error = sys.exc_info()[1]
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return None
    return describe(error)


def _emit_versions() -> None:
    context = rank_context.here()
    if context is not None and _first and not context.memory.get(_VERSIONS_EMITTED):
        context.memory[_VERSIONS_EMITTED] = True
        context.events.emit("environment", **_versions())


def _versions() -> dict[str, Any]:
    versions: dict[str, Any] = {"torch": None, "cuda": None, "cudnn": None, "nccl": None}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "__path__"):  # a `torch.py` of the user is no package
        versions["torch"] = str(torch.__version__)
        versions["cuda"] = emulation.WORDS if emulation.is_on() else torch.version.cuda
    if versions["cuda"] and not emulation.is_on():
        cudnn = loaded_library("libcudnn.so")  # torch's own function would initialize CUDA
        versions["cudnn"] = cudnn and int(cudnn.cudnnGetVersion())
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[union-attr]
    paddle = sys.modules.get("paddle")
    if paddle is not None:
        versions["paddle"] = str(paddle.__version__)
    return {**versions, "python": platform.python_version(), "platform": platform.platform()}
