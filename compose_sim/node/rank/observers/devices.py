"""Record which GPUs the script chooses for this rank."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Callable

from ...records.devices_and_files import DeviceChosen
from ..context import here, place
from ..torch_hooks import after_import, wrap

_MOST_NOTED = 20
_INDEX = re.compile(r"^cuda:(\d+)$")
_NOTED = "devices.noted"


def install() -> None:
    after_import("torch", lambda torch: _follow(torch.cuda))  # when emulated devices are in place


def _follow(module: ModuleType) -> None:
    @wrap(module, "set_device")  # the only function of torch for this, and it has no hook
    def set_device(original: Callable[..., Any], device: Any) -> None:
        _note(device)
        original(device)


def _note(device: Any) -> None:
    context = here()
    index = _index(device)
    if context is None or index is None or context.memory.get(_NOTED, 0) >= _MOST_NOTED:
        return
    context.memory[_NOTED] = context.memory.get(_NOTED, 0) + 1
    context.note(DeviceChosen(index, "torch.cuda.set_device", place(2)))
    context.flush()  # an index that no GPU has ends the script


def _index(device: Any) -> int | None:
    if isinstance(device, int):
        return device
    match = _INDEX.match(str(device))
    return int(match[1]) if match else None
