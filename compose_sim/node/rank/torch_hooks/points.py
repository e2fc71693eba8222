"""Follow calls of torch: each function is wrapped once, for all observers, the recorder and the replayer.

    points.BACKWARD.subscribe(_time)

    def _time(context, call):
        began = time.monotonic()
        result = yield
        context.times.work("backward", began)

A subscriber is called before torch's function, the one that subscribed last first. A generator goes on after torch's function has
returned, in the opposite order, and `yield` returns the result; if torch's function raised, only its `finally` clauses run. It may
also change `call.arguments` and `call.options`, or answer in the place of torch's function (`call.answer`).

A subscriber that raises switches off the feature of its module (`features.py`), and torch's function runs as without it. The
same happens if torch lacks a private name that the feature needs in the module of the point (`private_names.py`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any, Callable, NamedTuple

from ...shared import import_hooks
from ..context import RankContext, here, in_child
from . import after_import, features, private_names
from .features import feature_of

_C10D, _DDP = "torch.distributed.distributed_c10d", "torch.nn.parallel.distributed"
_LOADER = "torch.utils.data.dataloader"
Steps = Generator[None, Any, None]  # what a subscriber is that goes on after torch's function
_Subscriber = Callable[["RankContext", "TorchCall"], "Steps | None"]


class _Subscription(NamedTuple):
    module: str
    feature: str
    function: _Subscriber
    in_children: bool  # whether also in processes that the rank forks


class Point:
    """Functions of a module of torch that are followed alike; they are wrapped when the first subscriber comes."""

    def __init__(
        self, module: str, *names: str, copies: str = "", outermost: bool = False, optional: bool = False
    ) -> None:
        """
        Follow `names` of a module, such as "Optimizer.__init__"; those that torch does not have are left out.

        `copies` is a module that also has them. With `outermost`, calls within a call are not followed. Without any of the names, the
        features of the subscribers are switched off, unless the functions are `optional`.
        """
        self.module, self.names, self.outermost, self._optional = module, names, outermost, optional
        self.subscriptions: list[_Subscription] = []  # the last one first
        self.in_children = False
        self._copies = copies
        self._functions: list[_Function] = []

    def subscribe(self, function: _Subscriber, *, in_children: bool = False) -> _Subscriber:
        """Call `function(context, call)` at each call of these functions in the rank, from when torch has been imported."""
        found = _Subscription(function.__module__, feature_of(function.__module__), function, in_children)
        _keep_compiler_out()
        self.subscriptions.insert(0, found)
        self.in_children |= in_children
        after_import(self.module, functools.partial(self._begin_to_follow, found.feature), found.feature)
        return function

    def unwrap(self) -> None:
        """Put torch's own functions back, from now on."""
        for each in self._functions:
            setattr(each.owner, each.name, each.original)

    def _begin_to_follow(self, feature: str, module: ModuleType) -> None:
        if not self._functions:
            for path, _, name in (each.rpartition(".") for each in self.names):
                for owner in _owners(module, path, name):
                    self._wrap(module, owner, name)
        if not self._functions and not self._optional:
            features.switch_off(feature, f"{self.module}.{self.names[0]} is missing")

    def _wrap(self, module: ModuleType, owner: Any, name: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        function = _Function(self, module, owner, name, original)
        self._functions.append(function)
        wrapper = _wrapper_of(function)
        is_static = isinstance(owner, type) and isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(wrapper) if is_static else wrapper)
        copies = sys.modules.get(self._copies)
        if copies is not None and hasattr(copies, name):
            setattr(copies, name, wrapper)


def _owners(module: ModuleType, path: str, name: str) -> Iterator[Any]:
    """Yield what has a function: the module, or a class or module in it; with `*`, each class that defines methods of its own."""
    if path == "*":
        classes = {value for value in vars(module).values() if inspect.isclass(value)}
        yield from (each for each in classes if callable(vars(each).get(name)))
    elif not path or hasattr(module, path):
        yield getattr(module, path) if path else module


class _Function:
    """One function of torch that is wrapped."""

    def __init__(self, point: Point, module: ModuleType, owner: Any, name: str, original: Any) -> None:
        self.point, self.module, self.owner, self.name, self.original = point, module, owner, name, original
        self.is_inside = False  # autograd may compute part of a model again, and backward, in a thread of its own

    @functools.cached_property
    def positions(self) -> dict[str, int]:
        """The places of the parameters; none if torch implements the function in C."""
        try:
            return {name: index for index, name in enumerate(inspect.signature(self.original).parameters)}
        except (TypeError, ValueError):
            return {}


class TorchCall:
    """A call of a function of torch."""

    __slots__ = ("answered", "arguments", "context", "error", "function", "options", "running")

    def __init__(self, context: RankContext, function: _Function, arguments: tuple[Any, ...], options: dict[str, Any]):
        self.context, self.function, self.arguments, self.options = context, function, arguments, options
        self.error: BaseException | None = None  # what torch's function has raised
        self.answered: tuple[Any, ...] = ()
        self.running: list[tuple[str, Steps]] = []

    @property
    def name(self) -> str:
        """The name of the function, without that of its class."""
        return self.function.name

    @property
    def module(self) -> Any:
        """The module of torch that the function belongs to."""
        return self.function.module

    @property
    def owner(self) -> Any:
        """The first argument: the object whose method is called."""
        return self.arguments[0]

    def value(self, parameter: str) -> Any:
        """Return the value of a parameter; None if the call leaves it out."""
        if parameter in self.options:
            return self.options[parameter]
        index = self.function.positions.get(parameter, len(self.arguments))
        return self.arguments[index] if index < len(self.arguments) else None

    def replace(self, parameter: str, value: Any) -> None:
        """Give torch's function another value of a parameter."""
        index = self.function.positions.get(parameter, len(self.arguments))
        if parameter in self.options or index >= len(self.arguments):
            self.options[parameter] = value
        else:
            self.arguments = (*self.arguments[:index], value, *self.arguments[index + 1 :])

    def answer(self, result: Any) -> None:
        """Return this to the caller, and do not call torch's function."""
        self.answered = (result,)


def root_of(call: TorchCall) -> Any:
    """Return what a backward pass starts from: the tensor, if there is only one."""
    tensors = call.value("tensors")
    return tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors


def clipped_tensors(call: TorchCall) -> list[Any]:
    """Return the tensors that are clipped, which may have been given as an iterator."""
    given = call.value("parameters")
    tensors = [given] if hasattr(given, "grad") else list(given)
    call.replace("parameters", tensors)
    return tensors


def _begin(function: _Function, arguments: tuple[Any, ...], options: dict[str, Any]) -> TorchCall | None:
    """Return the call if it is followed, after calling the subscribers."""
    point = function.point
    rank = context = here()
    if rank is None and point.in_children:
        context = in_child()
    if context is None or (point.outermost and function.is_inside):
        return None
    call = TorchCall(context, function, arguments, options)
    for module, feature, subscriber, in_children in point.subscriptions:
        if features.is_off(feature) or (rank is None and not in_children):
            continue
        try:
            steps = subscriber(context, call)
            if steps is not None and next(steps, _OVER) is not _OVER:
                call.running.append((module, steps))
        except Exception as error:  # noqa: BLE001 - it is reported
            context.has_raised(module, error)
    function.is_inside = True
    return call


def _end(call: TorchCall, result: Any) -> None:
    """Let the subscribers go on after torch's function has returned or raised."""
    call.function.is_inside = False
    running, has_failed = call.running, call.error is not None
    while running:
        module, steps = running.pop()
        try:
            if has_failed:
                steps.close()
            else:
                steps.send(result)
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - it is reported
            call.context.has_raised(module, error)
    call.error = None  # else the frames of the exception would refer to it


_OVER: Any = object()


def _wrapper_of(function: _Function) -> Any:
    original = function.original

    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        call = _begin(function, arguments, options)
        if call is None:
            return original(*arguments, **options)
        try:
            result = call.answered[0] if call.answered else original(*call.arguments, **call.options)
        except BaseException as error:
            call.error = error
            _end(call, None)
            raise
        _end(call, result)
        return result

    made: Any = wrapper
    made.__code__ = _CODE or made.__code__
    made._torchdynamo_disable = True  # a call that is not compiled is called
    return made


# All wrappers share one code object. `warnings` looks for the line to name in the caller of torch's function, but passes over frames of
# Python's own import system, which it knows by these two words in the name of the file. With them, it passes over the wrapper too.
_CODE: Any = None
_CODE = _wrapper_of(_Function(Point(""), sys, sys, "", lambda: None)).__code__
_CODE = _CODE.replace(co_filename=f"{__file__}:importlib._bootstrap")


class Hook:
    """One of torch's own global hooks, which is registered once."""

    def __init__(self, module: str, register: str, *, when_compiled: bool) -> None:
        """Use the function `register` of a module. Compiled code calls the hook, or else it leaves no trace there."""
        self._module, self._register, self._when_compiled = module, register, when_compiled
        self._subscriptions: list[Callable[..., Any]] = []
        self._is_registered = False
        self._run: Callable[..., Any] = self.call

    def subscribe(self, function: Callable[..., Any], *, first: bool = False) -> None:
        """Call `function(context, …)` with what torch passes to the hook, before others if `first`; what it returns goes to torch."""
        self._subscriptions.insert(0 if first else len(self._subscriptions), function)
        after_import(self._module, self._begin, feature_of(function.__module__))

    def _begin(self, module: ModuleType) -> None:
        # Registered once: a step, which iterates over the hooks, may be what imports the compiler.
        if self._is_registered:
            return
        register, torch = getattr(module, self._register), sys.modules["torch"]
        if self._when_compiled:
            register(lambda *given: self._run(*given))
        else:
            register(lambda *given: None if torch.compiler.is_compiling() else self._run(*given))
        self._is_registered = True
        import_hooks.after_import("torch._dynamo", self._after_dynamo)

    def _after_dynamo(self, _: ModuleType) -> None:
        # Compiled code must call the subscribers each time, not the compiler once.
        self._run = sys.modules["torch"].compiler.disable(self.call)

    def call(self, *given: Any) -> Any:
        """Call the subscribers, as torch does."""
        context, returned = here(), None
        if context is not None:
            for function in self._subscriptions:
                result = context.guard(function.__module__, function, *given)
                returned = result if result is not None else returned
        return returned


def _after_dynamo(module: ModuleType) -> None:
    """Keep the compiler out of our code: what torch's functions do is compiled as without us, or called."""
    global _begin, _end
    disable = sys.modules["torch"].compiler.disable
    _begin, _end = disable(_begin), disable(_end)
    if private_names.has_all("points", "torch._dynamo"):
        module.eval_frame.skip_code(_CODE)


@functools.lru_cache(maxsize=1)
def _keep_compiler_out() -> None:
    import_hooks.after_import("torch._dynamo", _after_dynamo)


OWN = {  # the parameter with the tensors that a rank gives, to which those of the other ranks must correspond
    **dict.fromkeys(("broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter"), "tensor"),
    **dict.fromkeys(("gather_single", "gather_into_tensor"), "tensor"),
    **dict.fromkeys(("all_reduce_coalesced",), "tensors"),
    **dict.fromkeys(("all_gather_single", "all_gather_into_tensor", "_all_gather_base"), "input_tensor"),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_tensor", "_reduce_scatter_base"), "input"),
    **dict.fromkeys(("all_to_all_single",), "input"),
    **dict.fromkeys(("reduce_scatter",), "input_list"),
    **dict.fromkeys(("all_to_all",), "input_tensor_list"),
    **dict.fromkeys(("all_gather_coalesced",), "input_tensor_list"),
}
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")

OPTIMIZER_MADE = Point("torch.optim.optimizer", "Optimizer.__init__")
BEFORE_STEP = Hook("torch.optim.optimizer", "register_optimizer_step_pre_hook", when_compiled=True)
AFTER_STEP = Hook("torch.optim.optimizer", "register_optimizer_step_post_hook", when_compiled=True)
LOADER_MADE = Point(_LOADER, "DataLoader.__init__")
LOADER_ITERATED = Point(_LOADER, "DataLoader.__iter__")
LOADER_LENGTH = Point(_LOADER, "DataLoader.__len__")
ITERATOR_MADE = Point(_LOADER, "_BaseDataLoaderIter.__init__")
ITERATOR_RESET = Point(_LOADER, "_BaseDataLoaderIter._reset")  # once an epoch, with persistent workers
INDEX_DRAWN = Point(_LOADER, "_BaseDataLoaderIter._next_index")
BATCH_TAKEN = Point(_LOADER, "_BaseDataLoaderIter.__next__")  # of all kinds of loaders
STREAM_OPENED = Point("torch.utils.data._utils.fetch", "_IterableDatasetFetcher.__init__")
BATCH_MADE = Point("torch.utils.data._utils.fetch", "_MapDatasetFetcher.fetch", "_IterableDatasetFetcher.fetch")
FULLY_SHARDED = Point(
    "torch.distributed.fsdp._fully_shard._fully_shard", "fully_shard", copies="torch.distributed.fsdp"
)
JOIN_ENTERED = Point("torch.distributed.algorithms.join", "Join.__enter__")
COLLECTIVE = Point(_C10D, *OWN, *_OBJECTS, "barrier", "monitored_barrier", "new_group", "split_group")
MESSAGE = Point(_C10D, "send", "recv", "send_object_list", "recv_object_list", "isend", "irecv", "batch_isend_irecv")
WORK_AWAITED = Point(_C10D, "Work.wait")
GROUP_INITIALIZED = Point(_C10D, "init_process_group")
GROUP_DESTROYED = Point(_C10D, "destroy_process_group")
DECLARED_LOCAL = Point("torch.distributed.tensor", "DTensor.from_local")
MESH_INITIALIZED = Point("torch.distributed.device_mesh", "init_device_mesh")
MESH_MADE = Point("torch.distributed.device_mesh", "DeviceMesh.__init__")
SCHEDULE_MADE = Point("torch.optim.lr_scheduler", "LRScheduler.__init__")
SAMPLER_MADE = Point("torch.utils.data.distributed", "DistributedSampler.__init__")
EPOCH_SET = Point("torch.utils.data.distributed", "DistributedSampler.set_epoch")
NORM_CLIPPED = Point("torch.nn.utils.clip_grad", "clip_grad_norm_", copies="torch.nn.utils")
VALUE_CLIPPED = Point("torch.nn.utils.clip_grad", "clip_grad_value_", copies="torch.nn.utils")
FSDP_CLIPPED = Point("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.clip_grad_norm_")
SCALER_UNSCALES = Point("torch.amp.grad_scaler", "GradScaler.unscale_")
SCALER_STEPS = Point("torch.amp.grad_scaler", "GradScaler.step")
SAVED = Point("torch.serialization", "save")
SAVED_SHARDED = Point("torch.distributed.checkpoint.state_dict_saver", "save", "async_save")
LOADED = Point("torch", "load")
LOADED_SHARDED = Point("torch.distributed.checkpoint.state_dict_loader", "load")
STATE_LOADED = Point("torch.nn.modules.module", "Module.load_state_dict")
DEVICE_SET = Point("torch", "cuda.set_device")  # when emulated devices are in place
DRAWN = Point(
    "torch",
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"),
    *(f"Tensor.{name}" for name in ("normal_", "uniform_", "random_", "bernoulli_", "exponential_")),
)
DETACHED = Point("torch", "Tensor.detach")
CHOSEN = Point(
    "torch",
    *(
        f"{of}{name}"
        for of in ("", "Tensor.")
        for name in ("argmax", "argmin", "argsort", "topk", "sort", "max", "min")
    ),
)
SPREAD_TAKEN = Point(
    "torch", *(f"{of}{name}" for of in ("", "Tensor.") for name in ("var", "std")), "var_mean", "std_mean"
)
NORM_TAKEN = Point("torch", "linalg.vector_norm")  # which all others call
CUDA_INITIALIZED = Point("torch", "_C._cuda_init", optional=True)  # not in builds for the CPU
AUTOCAST_ENTERED = Point("torch.amp.autocast_mode", "autocast.__enter__")
BACKWARD = Point("torch.autograd", "backward", outermost=True)  # what Tensor.backward looks up at each call
DDP_MADE = Point(_DDP, "DistributedDataParallel.__init__")
DDP_FORWARD = Point(_DDP, "DistributedDataParallel.forward")
DDP_BUFFERS = Point(_DDP, "DistributedDataParallel._sync_buffers")  # all of a forward pass that waits for other ranks
MODULE_CALLED = Hook("torch.nn.modules.module", "register_module_forward_pre_hook", when_compiled=False)
