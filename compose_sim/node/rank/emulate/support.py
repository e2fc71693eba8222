"""Check that CUDA can be emulated with the installed torch, before any rank starts, and end the process if it cannot."""

from __future__ import annotations

import importlib
import os
from typing import Any, Callable, NoReturn

from ...shared.emulation import is_on
from ...shared.event_log import EventLog
from ...shared.frames import describe_with_our_line
from ..torch_hooks import features, private_names

_FEATURE = "emulate"
_HINT = "composesim up --gpus none …"


def require() -> None:
    """End this process, with an event that says why, if ranks want emulated CUDA and this torch lacks what it needs."""
    if not is_on():
        return
    importlib.import_module(
        "torch.utils._device"
    )  # the only module with names for the emulation that torch imports later
    if private_names.check(_FEATURE):
        give_up()


def attempt(part: Callable[[], Any]) -> None:
    """Set up a part of the emulation; end this process if that fails, because the script must not run with half of it."""
    try:
        part()
    except Exception as error:  # noqa: BLE001 - torch is not what it was
        features.raised(_FEATURE, describe_with_our_line(error))
        give_up()


def give_up() -> NoReturn:
    """Report that CUDA cannot be emulated, and exit."""
    sentence = features.why_off(_FEATURE)
    if "COMPOSESIM_RUN" in os.environ:
        EventLog.from_environment(os.environ).emit("start-failed", message=sentence, hint=_HINT, gap=True)
    raise SystemExit(f"composesim: {sentence}\nTry: {_HINT}")
