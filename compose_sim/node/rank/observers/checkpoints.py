"""Record when checkpoints are saved, state dicts whose names do not match, and tensors loaded to the GPU of another rank."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from ...records.precautions import LoadedElsewhere, LoadedState
from ..context import IN_CHECKPOINT, RankContext, here, place
from ..torch_hooks import after_import, wrap

_PREFIXES = ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.")
_MOST_NAMES, _MOST_NOTED, _DEPTH = 5, 20, 3
_NOTED = "checkpoints.noted"
_TIMED = {
    "torch.serialization": ("save",),  # not load, with which data sets read samples
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "torch.distributed.checkpoint.state_dict_loader": ("load",),
}


def install() -> None:
    after_import("torch.nn.modules.module", _after_module)
    after_import("torch", _after_torch)
    for module in _TIMED:
        after_import(module, _time)


def _time(module: ModuleType) -> None:
    for name in _TIMED[module.__name__]:

        @wrap(module, name)
        def timed(original: Any, *arguments: Any, **options: Any) -> Any:
            context = here()
            in_memory = isinstance(options.get("f", arguments[1] if len(arguments) > 1 else None), io.BytesIO)
            if context is None or in_memory or context.memory.get(IN_CHECKPOINT):
                return original(*arguments, **options)
            context.memory[IN_CHECKPOINT], began = True, time.monotonic()
            try:
                return original(*arguments, **options)
            finally:
                context.memory[IN_CHECKPOINT] = False
                context.times.work("checkpoint", began)


def _after_module(module: ModuleType) -> None:
    @wrap(module.Module, "load_state_dict")
    def load(original: Any, self: Any, state_dict: Any, strict: bool = True, *rest: Any, **options: Any) -> Any:
        context = here()
        if context is None:
            return original(self, state_dict, strict, *rest, **options)
        names: Any = context.guard(__name__, _names, self, state_dict) or (set(), ())
        result, raised = None, True
        try:
            result = original(self, state_dict, strict, *rest, **options)
            raised = False
        finally:
            context.guard(__name__, _note_state, *names, result, raised)
        return result


def _names(_: RankContext, module: Any, state: Any) -> tuple[set[str], tuple[str, ...]]:
    """Return the names that the module has and those that it is given: loading may change both."""
    own = {name for name, _ in module.named_parameters()} | {name for name, _ in module.named_buffers()}
    return own, tuple(str(name) for name in state)


def _note_state(context: RankContext, own: set[str], given: tuple[str, ...], result: Any, raised: bool) -> None:
    if not own or not given or own & set(given):
        return
    missing = len(own) if result is None else len(getattr(result, "missing_keys", ()))
    unexpected = given if result is None else tuple(getattr(result, "unexpected_keys", ()))
    count = context.memory[_NOTED] = context.memory.get(_NOTED, 0) + 1
    if missing and unexpected and count <= _MOST_NOTED:
        prefix = next((each for each in _PREFIXES if _explains(each, own, given)), "")
        context.note(LoadedState(len(own), missing, unexpected[:_MOST_NAMES], prefix, raised, place()))


def _explains(prefix: str, own: set[str], given: tuple[str, ...]) -> bool:
    """Return whether most names match once this prefix is removed from those given, or added to them."""
    removed = {name[len(prefix) :] for name in given if name.startswith(prefix)}
    added = {prefix + name for name in given}
    return 2 * max(len(removed & own), len(added & own)) > len(own)


def _after_torch(module: ModuleType) -> None:
    @wrap(module, "load")
    def load(original: Any, f: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        loaded = original(f, map_location, *arguments, **options)
        context = here()
        if context is not None and map_location is None:
            context.guard(__name__, _note_devices, loaded)
        return loaded


def _note_devices(context: RankContext, loaded: Any) -> None:
    torch: Any = sys.modules["torch"]
    found = sorted({each.device.index or 0 for each in _tensors(loaded, _DEPTH) if each.device.type == "cuda"})
    current = torch.cuda.current_device() if found else 0
    if any(each != current for each in found):
        context.note(LoadedElsewhere(tuple(found), current, place()))


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, sys.modules["torch"].Tensor):
        yield value
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each, depth - 1)
