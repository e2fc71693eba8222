"""Record the models that DistributedDataParallel wraps, their calls, and the parameters that get no gradient.

Calls are followed in the class of DistributedDataParallel: torch.save would pickle hooks on the user's modules, and torch.compile
would see them.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...records.gradients import SHARDED
from ...records.models import DdpModel, LocalBatchNorm, UnusedParameters
from ...records.process_groups import DdpForward
from ...records.record import Place
from .. import tracked
from ..context import RankContext, place, where
from ..observations import encoded
from ..torch_hooks import points

PENDING, FLUSHED = "models.pending", "models.flushed"
MAX_NAMES = 20
_ALL = "models.all"
_MAX_NOTED = 1000  # forward passes per model, in an ordinary run


@dataclass(eq=False)
class Model:
    """
    One DistributedDataParallel object.

    Parameters are identified by id, which lasts because the object keeps them alive; weak references would break torch's swap_tensors.
    """

    index: int
    reference: Any
    ranks: tuple[int, ...]
    group: str  # the name of the process group
    ignored: set[str]
    wrapped: dict[int, str] = field(default_factory=dict)  # those that required a gradient when it was made
    frozen: dict[int, str] = field(default_factory=dict)
    forwards: int = 0  # with gradients enabled
    synchronized: int = 0  # of them, those after which backward reduces gradients
    missing: set[str] | None = None  # parameters without a gradient after every backward pass since the last of those
    missing_noted: frozenset[str] = frozenset()
    backward_at: Place | None = None
    batchnorm_noted: bool = False


def install() -> None:
    points.DDP_MADE.subscribe(_made)
    points.DDP_FORWARD.subscribe(_forward)
    points.DDP_BUFFERS.subscribe(_buffers)


def sampled(context: RankContext, count: int) -> bool:
    """Return whether to look closer at this step or pass: at few in a run; in `check` at 50, and then at 16 of each doubling."""
    return count & (count - 1) == 0 or (
        context.thorough and (count <= 50 or count % (1 << count.bit_length() - 5) == 0)
    )


def living(context: RankContext) -> Iterator[tuple[Model, Any]]:
    """Yield all models that still exist, each with the DistributedDataParallel object."""
    for model in context.memory.get(_ALL, ()):
        ddp = model.reference()
        if ddp is not None:
            yield model, ddp


def clean(name: str) -> str:
    """Return a parameter's name as the user knows it, without what wrappers add."""
    return name.replace("_orig_mod.", "").removeprefix("module.") if "." in name else name


def _made(context: RankContext, call: points.TorchCall) -> points.Steps:
    at = place()
    context.synchronizations += 1
    context.wait_in(f"DistributedDataParallel(…){where(at)}")
    context.flush()
    try:
        yield
    finally:
        context.wait_in("")
    init_sync = call.value("init_sync")
    _wrapped(context, call.owner, init_sync is None or bool(init_sync), at)


def _forward(context: RankContext, call: points.TorchCall) -> points.Steps:
    _note_forward(context, call.owner)
    began = time.monotonic()
    try:
        yield
    finally:
        context.times.work("forward", began)


def _buffers(context: RankContext, _: points.TorchCall) -> points.Steps:
    context.wait_in(f"DDP's broadcast of buffers in forward{where(place())}")
    try:
        yield
    finally:
        context.wait_in("")


def _wrapped(context: RankContext, ddp: Any, init_sync: bool, at: Place | None) -> Model:
    """Record a new DistributedDataParallel object, and remember its parameters."""
    distributed = sys.modules["torch.distributed"]
    models = context.memory.setdefault(_ALL, [])
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    ranks = tuple(sorted(distributed.get_process_group_ranks(ddp.process_group)))
    group = str(getattr(ddp.process_group, "group_name", ""))
    model = Model(
        index=tracked.models.number(ddp), reference=weakref.ref(ddp), ranks=ranks, group=group, ignored=ignored
    )
    models.append(model)
    names = []
    for name, parameter in ddp.module.named_parameters():
        if name not in ignored:
            (model.wrapped if parameter.requires_grad else model.frozen)[id(parameter)] = clean(name)
            if parameter.requires_grad:
                names.append(clean(name))
    context.note(
        DdpModel(
            ddp=model.index,
            ranks=ranks,
            names=tuple(names[:200]),
            sub_group=len(ranks) < distributed.get_world_size(),
            find_unused=bool(ddp.find_unused_parameters),
            static_graph=bool(ddp.static_graph),
            device_ids=tuple(each for each in ddp.device_ids or () if isinstance(each, int)),
            init_sync=init_sync,
            at=at,
        )
    )
    if getattr(ddp, "_use_python_reducer", False):
        points.DDP_FORWARD.unwrap()  # the compiler then traces forward as a whole, which our wrapper would break
    return model


def _note_forward(context: RankContext, ddp: Any) -> None:
    memory = context.memory
    model = next((each for each in memory.get(_ALL, ()) if each.reference() is ddp), None)
    if model is None:  # unpickled or copied, not made by the constructor
        model = _wrapped(context, ddp, False, place())
    graded = sys.modules["torch"].is_grad_enabled()
    reduces = graded and ddp.require_backward_grad_sync
    if graded:
        model.forwards += 1
    if reduces:
        note_missing(context, model)
        model.synchronized += 1
        memory.setdefault(PENDING, {})[model.index] = model
    if reduces or ddp.will_sync_module_buffers():
        context.synchronizations += 1
        if context.thorough or model.forwards <= _MAX_NOTED:
            fields = f'"ddp":{model.index},"group":{list(model.ranks)},"at":{encoded(place())}'
            context.observations.note_often(DdpForward, fields)
            context.flush()
            memory[FLUSHED] = True
    if graded and ddp.training and not model.batchnorm_noted and sampled(context, model.forwards):
        _note_batchnorm(context, model, ddp)


def _note_batchnorm(context: RankContext, model: Model, ddp: Any) -> None:
    """Record modules that compute statistics from this rank's batch alone: torch's own, and those that keep their forward."""
    batchnorm: Any = sys.modules["torch.nn.modules.batchnorm"]
    names = [
        clean(name)
        for name, module in ddp.module.named_modules()
        if isinstance(module, batchnorm._BatchNorm)
        and module.training
        and (type(module).forward is batchnorm._BatchNorm.forward or type(module).__name__.startswith("BatchNormAct"))
    ]
    if names:
        model.batchnorm_noted = True
        context.note(LocalBatchNorm(model.index, tuple(names[:MAX_NAMES]), len(names)))


def note_missing(context: RankContext, model: Model) -> None:
    """Record once the parameters that got no gradient from any backward pass since the last forward pass."""
    missing, model.missing = frozenset(model.missing or ()), None
    if missing and missing != model.missing_noted:
        model.missing_noted = missing
        names = [name for name in model.wrapped.values() if name in missing]
        context.note(UnusedParameters(model.index, tuple(names[:MAX_NAMES]), len(names), model.backward_at))


def end(context: RankContext) -> None:
    for model in context.memory.get(_ALL, ()):
        note_missing(context, model)


def copied_model(optimizer: Any, models: list[Any]) -> tuple[int | None, int]:
    """
    Return the DDP model, or SHARDED, that has gradients no optimizer uses, if this one lacks those of parameters of the same shapes.

    The second number is that of these parameters.
    """
    from ..replay.wrapped_models import models_of  # which imports torch

    held = tracked.parameters_of(optimizer)
    shapes = Counter(tuple(each.shape) for each in held if each.requires_grad and each.grad is None)
    if not shapes:
        return None, 0
    used = {*map(id, tracked.held_parameters())}
    sharded = models_of("torch.distributed.fsdp", "FSDPModule")
    for index, module in [
        *((model.index, ddp.module) for model, ddp in models),
        *((SHARDED, each) for each in sharded),
    ]:
        unused = [each for each in module.parameters() if each.grad is not None and id(each) not in used]
        if Counter(tuple(each.shape) for each in unused) == shapes:
            return int(index), len(unused)
    return None, 0
