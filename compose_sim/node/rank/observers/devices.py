"""Record which GPUs the script chooses for this rank."""

from __future__ import annotations

import re
from typing import Any

from ...records.devices_and_files import DeviceChosen
from ..context import RankContext, place
from ..torch_hooks import points

_MAX_NOTED = 20
_INDEX = re.compile(r"^cuda:(\d+)$")
_NOTED = "devices.noted"


def install() -> None:
    points.DEVICE_SET.subscribe(_note)


def _note(context: RankContext, call: points.TorchCall) -> None:
    index = _index(call.value("device"))
    if index is None or context.memory.get(_NOTED, 0) >= _MAX_NOTED:
        return
    context.memory[_NOTED] = context.memory.get(_NOTED, 0) + 1
    context.note(DeviceChosen(index, "torch.cuda.set_device", place()))
    context.flush()  # an index that no GPU has ends the script


def _index(device: Any) -> int | None:
    if isinstance(device, int):
        return device
    match = _INDEX.match(str(device))
    return int(match[1]) if match else None
