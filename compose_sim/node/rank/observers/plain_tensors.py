"""Hash, in `check`, tensors that modules of a DDP model keep as plain attributes: DDP makes only parameters and buffers equal."""

from __future__ import annotations

import sys
from typing import Any

from ...records.models import PlainTensors
from ..context import RankContext
from ..torch_hooks import points
from . import states
from .models import clean, living

_FORWARDS = "plain_tensors.forwards"
_AT = (2, 8)  # forward passes: what is the same at both is a constant
_MAX_TENSORS, _MAX_ELEMENTS = 64, 1 << 22


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.DDP_FORWARD.subscribe(_note)


def _note(context: RankContext, call: points.TorchCall) -> None:
    counts: dict[int, int] = context.memory.setdefault(_FORWARDS, {})
    number = next((model.index for model, ddp in living(context) if ddp is call.owner), None)
    if number is None or counts.get(number, 0) >= max(_AT):
        return
    counts[number] = counts.get(number, 0) + 1
    found = _plain(call.owner.module) if counts[number] in _AT and not states.is_capturing() else {}
    if found:
        hashes = states.hashes_of(list(found.values()), whole=True)
        context.note(PlainTensors(number, tuple(found), tuple(map(str, hashes))))


def _plain(model: Any) -> dict[str, Any]:
    """Return the tensors that `forward` names, by name and shape; none if they are many or large."""
    torch: Any = sys.modules["torch"]
    found = {
        f"{clean(f'{prefix}.{name}'.lstrip('.'))} ({'×'.join(map(str, each.shape))})": each
        for prefix, module in model.named_modules()
        for name, each in vars(module).items()
        if type(each) is torch.Tensor and each.is_floating_point() and each.numel() > 1 and each.grad_fn is None
        if each.layout is torch.strided and each.device.type != "meta" and _uses(module, name)
    }
    are_few = len(found) <= _MAX_TENSORS and sum(each.numel() for each in found.values()) <= _MAX_ELEMENTS
    return found if are_few else {}


def _uses(module: Any, name: str) -> bool:
    """Return whether the module's forward names the attribute: others may be examples, or what is shown now and then."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    return code is not None and name in code.co_names
