"""What does a script do, seen from inside its rank? Optimizer steps, process groups and versions, told as events.

Hooks are set when the script's own imports reach the modules in question, so that nothing is imported that it would not import.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

from .emit import Events

_SECONDS_BETWEEN_STEPS = 0.2


class _Watch:
    """What has been seen in this rank so far."""

    def __init__(self, events: Events, *, first: bool) -> None:
        self.events = events
        self.process = os.getpid()  # a child forked by the script (a DataLoader worker) is not the rank
        self.steps = 0
        self._told_steps = 0
        self._next_at = 0.0
        self._tell_versions = first

    def step(self) -> None:
        self.steps += 1
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _SECONDS_BETWEEN_STEPS
            self._tell_step()

    def versions(self) -> None:
        if self._tell_versions:
            self._tell_versions = False
            self.events.emit("environment", **_versions())

    def end(self) -> None:
        self.versions()
        if self.steps > self._told_steps:
            self._tell_step()

    def _tell_step(self) -> None:
        self._told_steps = self.steps
        self.events.emit("step", step=self.steps)


_step_hook: Any = None
_watch: _Watch | None = None  # None until a rank begins: hooks may be set earlier, in the process that forks the ranks


def install() -> None:
    """Set the hooks as soon as the modules they belong to are imported."""
    sys.meta_path.insert(0, _AfterImport())


def begin(events: Events, *, first: bool) -> None:
    """The rank begins; the `first` on its node tells the versions as well."""
    global _watch
    _watch = _Watch(events, first=first)
    if "torch" in sys.modules:
        _watch.versions()


def end() -> None:
    """The script's main code has ended."""
    watch = _in_this_process()
    if watch is not None:
        watch.end()


def _in_this_process() -> _Watch | None:
    return _watch if _watch is not None and _watch.process == os.getpid() else None


def _after_torch(_: ModuleType) -> None:
    watch = _in_this_process()
    if watch is not None:
        watch.versions()


def _after_optimizer(module: ModuleType) -> None:
    global _step_hook
    _step_hook = module.register_optimizer_step_post_hook(_stepped)


def _after_dynamo(_: ModuleType) -> None:
    """Steps can be compiled from now on: have the hook called at every run of the compiled code, not seen once by the compiler."""
    global _step_hook
    hook = sys.modules["torch"].compiler.disable(_stepped)
    _step_hook.remove()
    _step_hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(hook)


def _stepped(*_: Any) -> None:
    watch = _in_this_process()
    if watch is not None:
        watch.step()


def _after_distributed(module: ModuleType) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        watch = _in_this_process()
        backend = options.get("backend", arguments[0] if arguments else None)
        if watch is not None:
            asked = _world_size_option(arguments, options)
            watch.events.emit("init", phase="started", backend=backend and str(backend), world_size=asked)
        original(*arguments, **options)
        if watch is not None:
            watch.events.emit("init", phase="done", backend=module.get_backend(), world_size=module.get_world_size())

    module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _world_size_option(arguments: tuple[Any, ...], options: dict[str, Any]) -> int | None:
    """The size of group that the script itself asks for; None where it leaves that to its environment (-1 for torch)."""
    size = options.get("world_size", arguments[3] if len(arguments) > 3 else None)
    return size if isinstance(size, int) and size > 0 else None


_AFTER: dict[str, Callable[[ModuleType], None]] = {
    "torch": _after_torch,
    "torch.optim.optimizer": _after_optimizer,
    "torch.distributed.distributed_c10d": _after_distributed,
    "torch._dynamo": _after_dynamo,
}


class _AfterImport:
    """A finder that finds modules as the others do, and has something done once one of `_AFTER` has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _AFTER:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _follow(spec.loader, _AFTER[name])
                return spec
        return None


def _follow(loader: Any, after: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # nothing of ours stays on the loader
        execute(module)
        try:
            after(module)
        except AttributeError as error:  # a torch without what we hold on to must still train
            print(f"composesim: steps and process groups may go unseen with this torch: {error}", file=sys.stderr)

    loader.exec_module = exec_module


def _versions() -> dict[str, Any]:
    versions: dict[str, Any] = {"torch": None, "cuda": None, "cudnn": None, "nccl": None}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        versions["cuda"] = torch.version.cuda
    if versions["cuda"]:
        versions["cudnn"] = torch.backends.cudnn.version()  # type: ignore[union-attr]
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[union-attr]
    return {**versions, "python": platform.python_version(), "platform": platform.platform()}
