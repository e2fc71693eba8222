"""Provide streams and events, which have nothing to wait for because every call is synchronous, and let torch.accelerator be CUDA."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from ...shared.import_hooks import replace
from . import cuda_module, devices
from .devices import index_of
from .refusals import refuse


class Stream:
    """A queue of work, which is always empty."""

    device_type = 1  # the number of CUDA in torch's enumeration

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device_index = index_of(device)
        self.device = devices.device(self.device_index)
        self.priority = priority
        self.stream_id = self.cuda_stream = id(self) if options.get("stream_id") is None else options["stream_id"]

    def wait_event(self, event: Any) -> None:
        """Do nothing: the event has happened."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: the stream has finished."""

    def record_event(self, event: CudaEvent | None = None) -> CudaEvent:
        event = event or CudaEvent()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        """Do nothing: the stream has finished."""

    def __enter__(self) -> Stream:
        context = StreamContext(self)
        context.__enter__()
        _current.entered.append(context)
        return self

    def __exit__(self, *error: object) -> None:
        _current.entered.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.stream_id, other.device) == (self.stream_id, self.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={hex(self.cuda_stream)}>"


class CudaEvent:
    """A moment that has passed once it was recorded."""

    def __init__(self, *arguments: Any, enable_timing: bool = False, **options: Any) -> None:
        self._timed = enable_timing or arguments[:1] == (True,)
        self._at: float | None = None
        self.device = devices.device(devices.current())
        self.cuda_event = id(self)

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: it has happened."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing: it has happened."""

    def elapsed_time(self, end_event: CudaEvent) -> float:
        """Return the milliseconds between two events."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1000.0

    def ipc_handle(self) -> Any:
        raise refuse("sharing a CUDA event between processes (CudaEvent.ipc_handle)")


class ExternalStream(Stream):
    """A queue that another library has made."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_id=stream_ptr, **kwargs)


class StreamContext(cuda_module.device):
    """The context `with torch.cuda.stream(s):`, which makes the stream and its device the current ones."""

    def __init__(self, stream: Stream | None) -> None:
        super().__init__(None if stream is None else stream.device_index)
        self.stream = stream

    def __enter__(self) -> None:
        super().__enter__()
        if self.stream is not None:
            self._before = _current.streams.get(self.idx)
            _current.streams[self.idx] = self.stream

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            _current.streams[self.idx] = self._before
        super().__exit__(*error)


class _Current(threading.local):
    """The current stream of each device, for each thread, and the streams that were entered with `with stream:`."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream | None] = {}
        self.entered: list[StreamContext] = []


_current = _Current()


def default_stream(device: Any = None) -> Stream:
    return Stream(device, stream_id=0)


def current_stream(device: Any = None) -> Stream:
    return _current.streams.get(index_of(device)) or default_stream(device)


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        devices.make_current(stream.device_index)
        _current.streams[stream.device_index] = stream


def stream_nothing() -> None:
    """Replace torch.cuda's classes, which do nothing in a torch without CUDA."""
    cuda: Any = torch.cuda
    answers: dict[str, Any] = {
        "Stream": Stream,
        "Event": CudaEvent,
        "ExternalStream": ExternalStream,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "is_current_stream_capturing": lambda: False,
    }
    replace(answers, cuda, cuda.streams)
    library: Any = torch
    library.Stream, library.Event = Stream, CudaEvent
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda self, stream: None


def accelerate() -> None:
    """Replace the C functions that torch.accelerator uses.

    The Python functions of torch.accelerator, DataLoader's pinning, DeviceMesh and checkpointing call these. The C functions only know
    devices that torch was built for.
    """
    accelerator = devices.real_device("cuda")
    answers: dict[str, Any] = {
        "_get_accelerator": lambda check=None: accelerator,
        "_accelerator_getAccelerator": lambda: accelerator,
        "_accelerator_getDeviceIndex": devices.current,
        "_accelerator_setDeviceIndex": devices.make_current,
        "_accelerator_exchangeDevice": devices.make_current,
        "_accelerator_maybeExchangeDevice": devices.exchange,
        "_accelerator_getStream": current_stream,
        "_accelerator_setStream": set_stream,
        "_accelerator_synchronizeDevice": lambda device=None: devices.index_of(device),
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": lambda: None,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": cuda_module.stats,
        "_accelerator_resetAccumulatedStats": lambda index: None,
        "_accelerator_resetPeakStats": cuda_module.reset_peak,
        "_accelerator_getMemoryInfo": cuda_module.free_and_total,
    }
    replace(answers, torch._C)
