"""Which GPU does the script take for this rank?"""

from __future__ import annotations

import functools
import re
from types import ModuleType
from typing import Any

from ...shared.import_hooks import after_import
from ..context import here, place

_MOST_NOTED = 20
_INDEX = re.compile(r"^cuda:(\d+)$")
_NOTED = "devices.noted"


def install() -> None:
    after_import("torch", lambda torch: _follow(torch.cuda))  # when devices that are emulated are in place


def _follow(module: ModuleType) -> None:
    original = module.set_device  # the one function that torch offers for this has no hook

    @functools.wraps(original)
    def set_device(device: Any) -> None:
        _tell(device)
        original(device)

    module.set_device = set_device  # type: ignore[attr-defined]


def _tell(device: Any) -> None:
    watch = here()
    index = _index(device)
    if watch is None or index is None or watch.memory.get(_NOTED, 0) >= _MOST_NOTED:
        return
    watch.memory[_NOTED] = watch.memory.get(_NOTED, 0) + 1
    watch.note("device", index=index, how="torch.cuda.set_device", at=place(2))
    watch.flush()  # an index that no GPU has ends the script


def _index(device: Any) -> int | None:
    if isinstance(device, int):
        return device
    match = _INDEX.match(str(device))
    return int(match[1]) if match else None
