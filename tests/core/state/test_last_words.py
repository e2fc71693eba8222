"""A rank that was ended from below Python is described by what it printed last: a kernel's assertion, a C++ exception."""

from __future__ import annotations

import pytest

from compose_sim.core.doctor.gpu_messages import explain
from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import Failure
from compose_sim.core.verdict.root_cause import first_cause
from compose_sim.node.shared.rank_logs import last_words
from tests.builders import a_plan, an_event

# As torch 2.13 prints them on an H100
ASSERTIONS = "".join(
    f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [{block},0,0], thread: [{thread},0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed.\n"
    for block in range(20)
    for thread in range(32)
)
ASSERTED = """CUDA error: device-side assert triggered
Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
ABORT = f"terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  {ASSERTED}"
GLOO = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= op.nbytes. 1024 vs 256
"""
PLAN = a_plan(nodes=2)
RUNNING = [
    an_event("started", 0.0),
    *(an_event("rank-started", 1.0, rank=rank, node=f"node-{rank}") for rank in range(2)),
]


def cause(*events: Event) -> Failure:
    found = first_cause(fold_all(PLAN, [*RUNNING, *events]))
    assert found is not None
    return found


def exited(output: str, *, signal: int = 6) -> Event:
    return an_event("rank-exited", 9.0, rank=1, node="node-1", signal=signal, words=last_words(output.encode()))


def test_the_assertion_of_a_kernel_is_named_once_with_the_kernel() -> None:
    found = cause(exited(ASSERTIONS + ABORT))

    assert found.message == (
        "rank 1 aborted: CUDA error: device-side assert triggered: "
        "Assertion `srcIndex < srcSelectDimSize` failed in indexSelectLargeIndex (Indexing.cu:1553)"
    )
    assert found.traceback.count("Assertion `") == 1
    assert "CUDA_LAUNCH_BLOCKING=1" in explain(found.message)
    assert "embedding" in explain(found.message)


def test_an_exception_is_the_cause_though_the_process_aborts_because_of_it() -> None:
    raised = an_event(
        "exception", 8.0, rank=1, node="node-1", type="AcceleratorError", message=ASSERTED,
        traceback='Traceback (most recent call last):\n  File "train.py", line 41, in <module>\n    loss.item()',
    )  # fmt: skip
    found = cause(raised, exited(ASSERTIONS + ABORT))

    assert found.kind == "exception"
    assert found.message.startswith("AcceleratorError: CUDA error: device-side assert triggered: Assertion `srcIndex <")
    assert "line 41" in found.traceback


@pytest.mark.parametrize(
    ("output", "signal", "message"),
    [
        (GLOO, 6, "rank 1 aborted: EnforceNotMet: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] "
         "op.preamble.length <= op.nbytes. 1024 vs 256"),
        ("double free or corruption (fasttop)\n", 6, "rank 1 aborted: double free or corruption (fasttop)"),
        ("step 3\n", 6, "rank 1 was killed by SIGABRT"),
        ("step 3\n", 11, "rank 1 was killed by SIGSEGV"),
        ("", 7, "rank 1 was killed by SIGBUS"),
    ],
)  # fmt: skip
def test_a_signal_is_named_with_what_the_rank_printed(output: str, signal: int, message: str) -> None:
    assert cause(exited(output, signal=signal)).message == message


def test_the_last_error_of_nccl_comes_first() -> None:
    message = (
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:94, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nError while creating shared memory segment /dev/shm/nccl-8L3vQa (size 9637888), error: No space left on device"
    )
    raised = an_event("exception", 8.0, rank=1, node="node-1", type="DistBackendError", message=message)
    found = cause(raised, an_event("rank-exited", 9.0, rank=1, node="node-1", exit_code=1))

    first = found.message.splitlines()[0]
    assert first.startswith("DistBackendError: ncclSystemError: Error while creating shared memory segment")
    assert "--shm-size" in explain(found.message)


def test_a_worker_without_shared_memory_names_the_line_of_the_script() -> None:
    inner = (
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/torch/storage.py", line 414, in _share_memory\n    share()\n'
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)\n"
    )
    trace = (
        'Traceback (most recent call last):\n  File "/project/b12_shm.py", line 18, in <module>\n    for batch in loader:\n'
        '  File "/venv/lib/python3.11/site-packages/torch/_utils.py", line 750, in reraise\n    raise exception\n'
        f"RuntimeError: {inner}"
    )
    raised = an_event("exception", 8.0, rank=1, node="node-1", type="RuntimeError", message=inner, traceback=trace)
    found = cause(raised, an_event("rank-exited", 9.0, rank=1, node="node-1", exit_code=1))

    assert found.message.endswith("No space left on device (28) (b12_shm.py, line 18)")
    assert "--shm-size" in explain(found.message)


def test_few_lines_of_much_output_are_kept() -> None:
    words = last_words(("Assertion `" + "x" * 5000 + "\n").encode() + b"what():  \xff\n" * 3)

    assert [len(line) for line in words] == [400, 10]
