"""Which models does DistributedDataParallel hold, how are they called, and do they still have the parameters that it wrapped?

Its constructor and its forward are wrapped at the class: hooks on the person's modules would be pickled with them by torch.save,
and seen by torch.compile.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ...shared.import_hooks import after_import
from ..context import Watch, here, place

FORWARDS, DEPTH, PENDING, FLUSHED = "models.forwards", "models.depth", "models.pending", "models.flushed"
MOST_NAMES = 20
_ALL, _FAILED = "models.all", "models.failed"
_MOST_NOTED = 1000  # forward passes of a model, in an ordinary run


@dataclass(eq=False)
class Model:
    """
    One DistributedDataParallel object.

    Its parameters are known by id, which lasts since it keeps them alive; weak references would hinder torch's swap_tensors.
    """

    index: int
    reference: Any
    ranks: list[int]
    ignored: set[str]
    wrapped: dict[int, str] = field(default_factory=dict)  # those that required a gradient when it was made
    frozen: dict[int, str] = field(default_factory=dict)
    forwards: int = 0  # with gradients enabled
    synchronised: int = 0  # of them those after which backward reduces gradients
    missing: set[str] | None = None  # parameters without a gradient after every backward pass since the last of those
    missing_noted: frozenset[str] = frozenset()
    backward_at: Any = None
    batchnorm_noted: bool = False


def install() -> None:
    after_import("torch.nn.parallel.distributed", _after_ddp)
    after_import("torch._dynamo", _after_dynamo)


def sampled(watch: Watch, count: int) -> bool:
    """Whether to look closer at this step or pass: seldom in an ordinary run, at all of the first where a check asked for it."""
    return count & (count - 1) == 0 or (watch.thorough and count <= 50)


def living(watch: Watch) -> Iterator[tuple[Model, Any]]:
    """All models that still exist, with their DistributedDataParallel objects."""
    for model in watch.memory.get(_ALL, ()):
        ddp = model.reference()
        if ddp is not None:
            yield model, ddp


def clean(name: str) -> str:
    """A parameter's name as the person knows it, without what wrappers put into it."""
    return name.replace("_orig_mod.", "").removeprefix("module.") if "." in name else name


def _after_ddp(module: ModuleType) -> None:
    ddp = module.DistributedDataParallel
    ddp.__init__ = _wrap_constructor(ddp.__init__)
    ddp.forward = _wrap_forward(ddp.forward)
    if hasattr(ddp, "_sync_buffers"):  # not public, but the only part of a forward pass that waits for other ranks
        ddp._sync_buffers = _wrap_buffers(ddp._sync_buffers)


def _after_dynamo(_: ModuleType) -> None:
    """Have the compiler leave our code alone, and see what is called in it as without us."""
    global _enter, _leave, _begin_buffers
    disable = sys.modules["torch"].compiler.disable
    _enter, _leave, _begin_buffers = disable(_enter), disable(_leave), disable(_begin_buffers)
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is not None:
        ddp = module.DistributedDataParallel
        for name in ("forward", "_sync_buffers"):
            if hasattr(getattr(ddp, name, None), "ours"):
                setattr(ddp, name, disable(getattr(ddp, name), recursive=False))


def _wrap_constructor(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - it takes the place of one
        watch = here()
        if watch is None:
            original(self, *arguments, **options)
            return
        at = place()
        watch.synchronisations += 1
        watch.wait_in(f"DistributedDataParallel(…){where(at)}")
        watch.flush()
        try:
            original(self, *arguments, **options)
        finally:
            watch.wait_in("")
        _survive(watch, _wrapped, self, at)

    return __init__


def _wrap_forward(original: Any) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **options: Any) -> Any:
        watch = _enter(self)
        if watch is None:
            return original(self, *inputs, **options)
        try:
            return original(self, *inputs, **options)
        finally:
            _leave(watch)

    forward.ours = True  # type: ignore[attr-defined]
    return forward


def _wrap_buffers(original: Any) -> Any:
    @functools.wraps(original)
    def _sync_buffers(self: Any) -> Any:
        watch = _begin_buffers()
        if watch is None:
            return original(self)
        try:
            return original(self)
        finally:
            watch.wait_in("")

    _sync_buffers.ours = True  # type: ignore[attr-defined]
    return _sync_buffers


def _begin_buffers() -> Watch | None:
    watch = here()
    if watch is not None:
        watch.wait_in(f"DDP's broadcast of buffers in forward{where(place())}")
    return watch


def where(at: list[Any] | None) -> str:
    return f" ({os.path.basename(at[0])}, line {at[1]})" if at else ""  # noqa: PTH119 - a microsecond, not ten


def _survive(watch: Watch, function: Any, *values: Any) -> Any:
    try:
        return function(watch, *values)
    except Exception:  # noqa: BLE001 - this runs inside somebody's training
        if not watch.memory.get(_FAILED):
            watch.memory[_FAILED] = True
            watch.note("observer-failed", observer=__name__, traceback=traceback.format_exc())
        return None


def _wrapped(watch: Watch, ddp: Any, at: list[Any] | None) -> Model:
    """Note a new DistributedDataParallel object, and remember its parameters."""
    distributed = sys.modules["torch.distributed"]
    models = watch.memory.setdefault(_ALL, [])
    ignored = set(getattr(ddp, "parameters_to_ignore", ()))
    ranks = sorted(distributed.get_process_group_ranks(ddp.process_group))
    model = Model(index=len(models), reference=weakref.ref(ddp), ranks=ranks, ignored=ignored)
    models.append(model)
    names = []
    for name, parameter in ddp.module.named_parameters():
        if name not in ignored:
            (model.wrapped if parameter.requires_grad else model.frozen)[id(parameter)] = clean(name)
            if parameter.requires_grad:
                names.append(clean(name))
    watch.note(
        "ddp",
        ddp=model.index,
        at=at,
        ranks=ranks,
        sub_group=len(ranks) < distributed.get_world_size(),
        find_unused=bool(ddp.find_unused_parameters),
        static_graph=bool(ddp.static_graph),
        broadcast_buffers=bool(ddp.broadcast_buffers),
        buffers=sum(1 for _ in ddp.module.buffers()),
        parameters=len(model.wrapped) + len(model.frozen),
        names=names[:200],
        device_ids=[str(each) for each in ddp.device_ids or ()],
        ignored=len(ignored),
    )
    if getattr(ddp, "_use_python_reducer", False):
        # The compiler then traces forward as a whole, which our part would break.
        type(ddp).forward = getattr(type(ddp).forward, "__wrapped__", type(ddp).forward)
    return model


def _enter(ddp: Any) -> Watch | None:
    watch = here()
    if watch is not None:
        watch.memory[DEPTH] = watch.memory.get(DEPTH, 0) + 1
        _survive(watch, _note_forward, ddp)
    return watch


def _leave(watch: Watch) -> None:
    watch.memory[DEPTH] -= 1


def _note_forward(watch: Watch, ddp: Any) -> None:
    memory = watch.memory
    model = next((each for each in memory.get(_ALL, ()) if each.reference() is ddp), None)
    if model is None:  # unpickled or copied: no constructor made it
        model = _wrapped(watch, ddp, place())
    graded = sys.modules["torch"].is_grad_enabled()
    reduces = graded and ddp.require_backward_grad_sync
    if graded:
        memory[FORWARDS] = memory.get(FORWARDS, 0) + 1
        model.forwards += 1
    if reduces:
        note_missing(watch, model)
        model.synchronised += 1
        memory.setdefault(PENDING, {})[model.index] = model
    if reduces or ddp.will_sync_module_buffers():
        watch.synchronisations += 1
        if watch.thorough or model.forwards <= _MOST_NOTED:
            watch.note(
                "collective", op="DDP forward", group=model.ranks, shape=None, dtype=None, at=place(), ddp=model.index
            )
            watch.flush()
            memory[FLUSHED] = True
    if graded and ddp.training and not model.batchnorm_noted and sampled(watch, model.forwards):
        _note_batchnorm(watch, model, ddp)


def _note_batchnorm(watch: Watch, model: Model, ddp: Any) -> None:
    """Modules that take statistics from what this rank sees alone: torch's own, and those that keep their forward."""
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
        watch.note("batchnorm", ddp=model.index, names=names[:MOST_NAMES], count=len(names), at=place())


def note_missing(watch: Watch, model: Model) -> None:
    """Note the parameters that no backward pass since the last forward pass gave a gradient, once."""
    missing, model.missing = frozenset(model.missing or ()), None
    if missing and missing != model.missing_noted:
        model.missing_noted = missing
        names = [name for name in model.wrapped.values() if name in missing]
        watch.note("unused", ddp=model.index, names=names[:MOST_NAMES], count=len(names), at=model.backward_at)


def end(watch: Watch) -> None:
    for model in watch.memory.get(_ALL, ()):
        note_missing(watch, model)
