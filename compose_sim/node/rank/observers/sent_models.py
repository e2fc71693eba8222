"""Record, in `check`, what buffers models hold when one rank sends their parameters to the others, one by one, again and again.

A learner sends its policy to actors so. What it does not send, such as the statistics of a normalization, differs there from then on.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from ...records.models import SentModel
from ..context import RankContext, place
from ..torch_hooks import points
from ..tracked import Outermost
from . import states

_MEMORY = "sent_models.models"
_MAX_SENT, _MAX_BUFFERS, _MAX_ELEMENTS = 12, 20, 1 << 16


@dataclass
class Models:
    """The models that were called, by the address of their first parameter."""

    called: Outermost = field(default_factory=Outermost)
    first: dict[int, Any] = field(default_factory=dict)
    sent: int = 0
    last: int = 0  # the address of what was broadcast


def begin(context: RankContext) -> None:
    if context.mode == "record":
        context.memory[_MEMORY] = Models()
        points.MODULE_CALLED.subscribe(_called)
        points.COLLECTIVE.subscribe(_send)


def _called(context: RankContext, module: Any, *_: Any) -> None:
    models: Models = context.memory[_MEMORY]
    if models.called.number(module) >= 0:
        torch: Any = sys.modules["torch"]
        parameter: Any = next(module.parameters(), None)
        is_known = parameter is not None and not torch.nn.parameter.is_lazy(parameter)
        if is_known and type(parameter.data) is torch.Tensor and parameter.numel():
            models.first[parameter.data_ptr()] = weakref.ref(module)


def _send(context: RankContext, call: points.TorchCall) -> None:
    models: Models = context.memory[_MEMORY]
    tensor: Any = call.value("tensor") if call.name == "broadcast" and models.sent < _MAX_SENT else None
    is_plain = type(getattr(tensor, "data", None)) is sys.modules["torch"].Tensor
    last, models.last = models.last, tensor.data_ptr() if is_plain else 0
    # Emulated NCCL broadcasts by other broadcasts of the same tensor.
    made = models.first.get(models.last) if models.last != last else None
    if made is None or (module := made()) is None:
        return
    buffers = {
        name: each
        for name, each in module.named_buffers()
        if each.is_floating_point() and type(each) is sys.modules["torch"].Tensor and 0 < each.numel() <= _MAX_ELEMENTS
    }
    if 0 < len(buffers) <= _MAX_BUFFERS:
        models.sent += 1
        hashes = states.hashes_of([each.detach().cpu() for each in buffers.values()], whole=True)
        is_source = (call.value("src") or 0) == call.module.get_rank()
        context.note(SentModel(type(module).__qualname__, is_source, tuple(buffers), hashes, place()))
