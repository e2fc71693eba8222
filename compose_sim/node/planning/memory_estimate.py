"""Estimate the memory of a rank: run the script up to its second optimizer step with fake tensors, which have shapes and no data.

`memory-estimate SCRIPT [ARGS]`, or `memory-estimate -m MODULE [ARGS]`. The last line of stdout is MARK and a JSON object. torch's
MemTracker counts what the step allocates. DDP cannot be constructed with fake tensors, so the bare module runs in its place,
and the buckets are added: as many bytes as the gradients, unless they are views of the buckets.

A script whose data needs values (`images[labels == 3]`) fails with fake tensors before it has a model. It starts again with real
tensors, and those of the model are replaced by fake ones when DDP gets it; then the model must fit into this machine's memory once.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

from .fake_run import plain_numbers, read_data_for_real, resident_bytes, write_no_file

MARK = "composesim-memory-estimate "
_STEPS = 2  # the first one allocates the state of the optimizer, so the second has the highest peak
_PATIENCE_S = 300
_FOR_REAL = "--build-for-real"


class _Done(BaseException):
    """The script has made its steps; it must not handle this."""


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_PATIENCE_S)
    result: dict[str, Any] = {}
    for_real, arguments = arguments[0] == _FOR_REAL, arguments[arguments[0] == _FOR_REAL :]
    try:
        _estimate(arguments, result, for_real)
        result.setdefault("problem", "the script ended before the second optimizer step of a DDP model")
    except _Done:
        pass
    except SystemExit as leave:
        result["problem"] = f"the script exited with status {leave.code} before its second optimizer step"
    except BaseException as error:  # noqa: BLE001 - what the script raises is the answer
        text = str(error).strip().splitlines() or [""]
        result["problem"] = f"{type(error).__name__}: {text[0]}{_place(error)}"
    if "problem" in result and "buckets" not in result and not for_real:
        program = str(Path(__file__).parent.parent / "__main__.py")
        os.execv(sys.executable, [sys.executable, program, "memory-estimate", _FOR_REAL, *arguments])
    sys.stdout.write("\n" + MARK + json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without the exit handlers of libraries that were given fake tensors


def _give_up(*_: object) -> None:
    raise TimeoutError(f"no second optimizer step within {_PATIENCE_S} s")


def _estimate(arguments: list[str], result: dict[str, Any], for_real: bool) -> None:
    import torch

    interpreter = resident_bytes()
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.optim.optimizer import register_optimizer_step_post_hook

    _fake_process_group(torch)
    write_no_file(torch)
    read_data_for_real(torch)
    before, tracker = resident_bytes(), MemTracker()
    models: list[Any] = []

    def stepped(*_: object) -> None:
        if models:
            result["steps"] = result.get("steps", 0) + 1
        if result.get("steps") == _STEPS:
            result["process"] = interpreter + max(0, resident_bytes() - before)
            peaks = tracker.get_tracker_snapshot("peak").values()
            result["peak"] = {}
            for peak in peaks:
                for kind, size in peak.items():
                    name = getattr(kind, "name", str(kind)).lower()
                    result["peak"][name] = result["peak"].get(name, 0) + size
            raise _Done

    with contextlib.ExitStack() as modes:
        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def enter() -> None:
            modes.enter_context(mode)
            modes.enter_context(plain_numbers(torch))

        def given_to_ddp(model: Any) -> None:
            if for_real:
                _make_fake(model, mode)

        def begin(model: Any, as_views: bool) -> None:
            """Count from the first forward pass of a model that is trained."""
            if for_real and not models:
                enter()
            models.append(model)
            if len(models) == 1:
                tracker.track_external(model)
                modes.enter_context(tracker)
            gradients = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
            result["buckets"] = result.get("buckets", 0) + (0 if as_views else gradients)

        _replace_ddp(torch, given_to_ddp, begin)
        register_optimizer_step_post_hook(stepped)
        if not for_real:
            enter()
        _run(arguments)


def _run(arguments: list[str]) -> None:
    name, rest = (arguments[1], arguments[2:]) if arguments[0] == "-m" else (arguments[0], arguments[1:])
    sys.argv = [name, *rest]
    with contextlib.redirect_stdout(sys.stderr):
        if arguments[0] == "-m":
            sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python itself does
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(name).resolve().parent)
            runpy.run_path(name, run_name="__main__")


def _fake_process_group(torch: Any) -> None:
    """Let the script join a group of WORLD_SIZE ranks, in which collectives move nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group

    def init_process_group(*_: object, **__: object) -> None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        original("fake", store=FakeStore(), rank=rank, world_size=size)

    dist.init_process_group = init_process_group
    dist.distributed_c10d.init_process_group = init_process_group


def _make_fake(model: Any, mode: Any) -> None:
    """Replace the parameters and buffers of a model by fake tensors."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = mode.from_tensor(tensor)


def _replace_ddp(torch: Any, given: Callable[[Any], None], begin: Callable[[Any, bool], None]) -> None:
    """Put a module without communication in the place of DistributedDataParallel."""
    distributed: Any = import_module("torch.nn.parallel.distributed")

    class BareModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, module: Any, *_: Any, gradient_as_bucket_view: bool = False, **__: Any) -> None:
            super().__init__()
            given(module)
            self.module, self._as_views, self._begun = module, gradient_as_bucket_view, False

        def forward(self, *inputs: Any, **options: Any) -> Any:
            if self.training and torch.is_grad_enabled() and not self._begun:
                self._begun = True
                begin(self.module, self._as_views)
            return self.module(*inputs, **options)

        def no_sync(self) -> Any:
            return contextlib.nullcontext()

        def join(self, *_: Any, **__: Any) -> Any:
            return contextlib.nullcontext()

        def register_comm_hook(self, *_: Any) -> None:
            pass

    import_module("torch.nn.parallel").__dict__["DistributedDataParallel"] = BareModule
    distributed.DistributedDataParallel = BareModule


def _place(error: BaseException) -> str:
    """Return the last line of the user's own code that an error came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/site-packages/" not in frame.filename and not frame.filename.startswith(("<", sys.base_prefix))
    ]
    ours = str(Path(__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith(ours)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
