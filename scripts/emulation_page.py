"""Call every public function of torch for CUDA and for process groups with emulated GPUs, and write what became of each as a page.

`python -m scripts.emulation_page` writes docs/emulated-functions.md. Operators are called with arguments made from their schema.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "emulated-functions.md"
AS_ON_A_GPU, REFUSED, DIFFERS, FAILED = "as on a GPU", "refused", "differs", "failed"
_RANKS = 2
_PATIENCE = timedelta(seconds=30)  # a call that one rank makes alone fails then

# The error that a call has on a GPU too
_ERRORS = {
    "torch.distributed.monitored_barrier": "ValueError: monitored_barrier is only implemented for GLOO backend",
    "torch.distributed.shrink_group": "TypeError: Process group backend",
}
# What a call returns that a GPU would answer otherwise
DIFFERENCES = {
    "torch.cuda.caching_allocator_delete": "does nothing",
    "torch.cuda.check_error": "never finds an error",
    "torch.cuda.clock_rate": "is a constant",
    "torch.cuda.device_memory_used": "counts this process alone",
    "torch.cuda.get_arch_list": "is that of an A100",
    "torch.cuda.get_gencode_flags": "is that of an A100",
    "torch.cuda.get_device_properties": "is that of an A100 with a share of this machine's memory",
    "torch.cuda.get_per_process_memory_fraction": "is 1: memory is not limited",
    "torch.cuda.set_per_process_memory_fraction": "does nothing",
    "torch.cuda.host_memory_stats": "is empty: pinned memory is not counted",
    "torch.cuda.host_memory_stats_as_nested_dict": "is empty: pinned memory is not counted",
    "torch.cuda.list_gpu_processes": "lists none",
    "torch.cuda.max_memory_allocated": "is the highest of all queries",
    "torch.cuda.max_memory_cached": "is the highest of all queries",
    "torch.cuda.max_memory_reserved": "is the highest of all queries",
    "torch.cuda.memory_snapshot": "is empty",
    "torch.cuda.memory_stats": "counts bytes, no allocations",
    "torch.cuda.memory_stats_as_nested_dict": "counts bytes, no allocations",
    "torch.cuda.memory_summary": "is one line",
    "torch.cuda.memory_usage": "is 0",
    "torch.cuda.power_draw": "is a constant",
    "torch.cuda.set_sync_debug_mode": "does nothing",
    "torch.cuda.get_sync_debug_mode": "is 0",
    "torch.cuda.temperature": "is a constant",
    "torch.cuda.utilization": "is the process's share of CPU time",
    "torch.cuda.caching_allocator_enable": "does nothing",
    "torch.distributed.shrink_group": "is not supported, as by NCCL before 2.27",
}

_CUDA = {
    "caching_allocator_delete": "(0)",
    "can_device_access_peer": "(0, 0)",
    "change_current_allocator": "(None)",
    "check_error": "(0)",
    "CUDAPluggableAllocator": "('a.so', 'a', 'b')",
    "CudaError": "(2)",
    "device": "(0)",
    "device_of": "(x)",
    "ExternalStream": "(0)",
    "get_stream_from_external": "(0)",
    "graph": "(None)",
    "make_graphed_callables": "(nn.Linear(2, 2).cuda(), (x,))",
    "manual_seed": "(1)",
    "manual_seed_all": "(1)",
    "set_device": "(LOCAL)",
    "set_per_process_memory_fraction": "(0.5)",
    "set_rng_state": "(torch.cuda.get_rng_state())",
    "set_rng_state_all": "(torch.cuda.get_rng_state_all())",
    "set_stream": "(torch.cuda.current_stream())",
    "set_sync_debug_mode": "(0)",
    "stream": "(torch.cuda.current_stream())",
    "StreamContext": "(torch.cuda.current_stream())",
    "use_mem_pool": "(None).__enter__()",
    "nvtx.mark": "('a')",
    "nvtx.range": "('a').__enter__()",
    "nvtx.range_end": "(0)",
    "nvtx.range_push": "('a')",
    "nvtx.range_start": "('a')",
    "nccl.all_gather": "([x], [x])",
    "nccl.all_reduce": "([x])",
    "nccl.broadcast": "([x])",
    "nccl.reduce": "([x])",
    "nccl.reduce_scatter": "([x], [x])",
    "gds.GdsFile": "('a', 0)",
    "gds.gds_deregister_buffer": "(x.untyped_storage())",
    "gds.gds_register_buffer": "(x.untyped_storage())",
}
_LISTS = "[torch.zeros(2, device='cuda') for _ in range(2)]"
_DISTRIBUTED = {
    "all_gather": f"({_LISTS}, x)",
    "all_gather_coalesced": "([[torch.zeros(2, device='cuda')] for _ in range(2)], [x])",
    "all_gather_into_tensor": "(pair, x)",
    "all_gather_object": "([None] * 2, 1)",
    "all_gather_single": "(pair, x)",
    "all_reduce": "(x)",
    "all_reduce_coalesced": "([x])",
    "all_to_all": f"({_LISTS}, {_LISTS})",
    "all_to_all_single": "(pair, pair.clone())",
    "batch_isend_irecv": "([dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, pair[:2], 1 - RANK)])",
    "broadcast": "(x, 0)",
    "broadcast_object_list": "([1], 0)",
    "gather": f"(x, {_LISTS} if RANK == 0 else None, dst=0)",
    "gather_object": "(1, [None] * 2 if RANK == 0 else None)",
    "get_default_backend_for_device": "('cuda')",
    "get_global_rank": "(dist.group.WORLD, 0)",
    "get_group_rank": "(dist.group.WORLD, 0)",
    "get_node_local_rank": "()",
    "get_process_group_ranks": "(dist.group.WORLD)",
    "init_device_mesh": "('cuda', (2,))",
    "irecv": "(x, 0).wait() if RANK else dist.send(x, 1)",
    "isend": "(x, 1).wait() if RANK == 0 else dist.recv(x, 0)",
    "is_backend_available": "('nccl')",
    "monitored_barrier": "()",
    "new_group": "([0, 1])",
    "new_subgroups": "(2)",
    "new_subgroups_by_enumeration": "([[0, 1]])",
    "P2POp": "(dist.isend, x, 1 - RANK)",
    "recv": "(x, 0) if RANK else dist.send(x, 1)",
    "recv_object_list": "([None], 0) if RANK else dist.send_object_list([1], 1)",
    "reduce": "(x, 0)",
    "reduce_scatter": f"(x, {_LISTS})",
    "reduce_scatter_single": "(x, pair)",
    "reduce_scatter_tensor": "(x, pair)",
    "scatter": f"(x, {_LISTS} if RANK == 0 else None, src=0)",
    "scatter_object_list": "([None], [1, 2] if RANK == 0 else None)",
    "send": "(x, 1) if RANK == 0 else dist.recv(x, 0)",
    "send_object_list": "([1], 1) if RANK == 0 else dist.recv_object_list([None], 0)",
    "set_debug_level": "(dist.get_debug_level())",
    "shrink_group": "([1])",
    "split_group": "(split_ranks=[[0, 1]])",
    "supports_complex": "(dist.ReduceOp.SUM)",
}
# Not calls of a script: classes that it only names, functions that end or replace what the others need, and imported names
_LEFT_OUT = set(
    [
        "breakpoint",
        "init_process_group",
        "destroy_process_group",
        "register_rendezvous_handler",
        "rendezvous",
        "record_comm",
        "timedelta",
        "Logger",
        "Reducer",
        "Backend",
        "BackendConfig",
        "BuiltinCommHookType",
        "DebugLevel",
        "DeviceMesh",
        "DistBackendError",
        "DistError",
        "DistNetworkError",
        "DistStoreError",
        "FileStore",
        "GradBucket",
        "GroupMember",
        "GroupName",
        "HashStore",
        "PrefixStore",
        "ProcessGroup",
        "ProcessGroupGloo",
        "ProcessGroupNCCL",
        "QueueEmptyError",
        "ReduceOp",
        "Store",
        "TCPStore",
        "Work",
        "group",
        "is_initialized",
        "CudaError",
        "DeferredCudaCallError",
        "cudaStatus",
    ]
)
_MODULES = ("torch.cuda", "torch.cuda.nvtx", "torch.cuda.nccl", "torch.cuda.gds")
# Of other accelerators, or called only by torch's own kernels
_OF_OTHERS = (
    "miopen",
    "mps",
    "lstm_mps",
    "_lstm_mps",
    "_mps",
    "_copy_from",
    "_use_miopen",
    "_nested_get",
    "_nested_view",
    "_resize_output",
)


def walk() -> dict[str, tuple[str, str]]:
    """Return the state of each function, and the error or difference, as two ranks with emulated GPUs find them."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_start_rank(rank, folder) for rank in range(_RANKS)]
        outputs = [rank.communicate(timeout=500) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("\n".join(error for _, error in outputs))
    found: dict[str, tuple[str, str]] = json.loads(outputs[0][0].rpartition("WALKED ")[2])
    return found


def _start_rank(rank: int, folder: str) -> subprocess.Popen[str]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": _RANKS,
        "COMPOSESIM_EMULATED_GPUS": _RANKS,
        "STORE": folder,
    }
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "scripts.emulation_page", "--rank"]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _walk_as_rank() -> None:
    from compose_sim.node.rank import emulate

    emulate.install()
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    gc.freeze()  # queries of memory look at all objects
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{os.environ['STORE']}/store",
        rank=rank,
        world_size=_RANKS,
        timeout=_PATIENCE,
        device_id=torch.device("cuda", rank),  # without one, a group cannot be split
    )
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "dist": dist, "RANK": rank, "LOCAL": rank}
    names |= {"x": torch.ones(2, device="cuda"), "pair": torch.ones(4, device="cuda")}
    found = {name: _outcome(name, lambda: eval(call, names)) for name, call in _calls(torch, dist)}  # noqa: B023
    found |= {name: _outcome(name, call) for name, call in _operators(torch)}
    print("WALKED " + json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _outcome(name: str, call: Callable[[], Any]) -> tuple[str, str]:
    from compose_sim.node.rank.emulate.refusals import NotEmulatedError

    print(name, file=sys.stderr, flush=True)
    try:
        result = call()
        for work in result if name == "torch.distributed.batch_isend_irecv" else ():
            work.wait()
    except NotEmulatedError:
        return REFUSED, ""
    except Exception as error:  # noqa: BLE001 - it is the result
        text = f"{type(error).__name__}: {error}"
        if not text.startswith(_ERRORS.get(name, "\0")):
            return FAILED, text
    return (DIFFERS, DIFFERENCES[name]) if name in DIFFERENCES else (AS_ON_A_GPU, "")


def _calls(torch: Any, dist: Any) -> Iterator[tuple[str, str]]:
    """Yield each public function and class, and an expression that calls it."""
    for module in _MODULES:
        own = module.removeprefix("torch.cuda").removeprefix(".")
        namespace = torch.cuda if not own else getattr(torch.cuda, own)
        for name in sorted(namespace.__all__):
            if (
                name not in _LEFT_OUT
                and callable(getattr(namespace, name, None))
                and not name.endswith(("Storage", "Tensor"))
            ):
                yield f"{module}.{name}", f"{module}.{name}{_CUDA.get(f'{own}.{name}' if own else name, '()')}"
    for name in sorted(vars(dist)):
        value = getattr(dist, name)
        if not name.startswith("_") and callable(value) and name not in _LEFT_OUT and _is_of_torch(value):
            yield f"torch.distributed.{name}", f"dist.{name}{_DISTRIBUTED.get(name, '()')}"


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(("torch", "compose_sim"))


def _operators(torch: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each operator for which this torch has kernels for CUDA or nothing, but none for the CPU."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = (
        *("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
        *(
            "CompositeImplicitAutogradNestedTensor",
            "SparseCPU",
            "SparseCsrCPU",
            "QuantizedCPU",
            "MkldnnCPU",
            "NestedTensorCPU",
        ),
    )
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        name = full.removeprefix("aten::")
        if name == full or name.startswith(_OF_OTHERS) or "_mps" in name or any(has(full, key) for key in keys):
            continue
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        called = operator if overload.endswith("out") else getattr(torch, packet, operator)
        called = torch.Tensor.record_stream if name == "record_stream" else called
        yield f"aten.{name}", functools.partial(_call, torch, called, operator)


def _call(torch: Any, called: Any, operator: Any) -> Any:
    """Call an operator, or the function that scripts call in its place, with arguments made from its schema."""
    positional, by_name = _arguments(torch, operator)
    return called(*positional, **by_name)


_PER_CHANNEL = ("mean", "invstd", "weight", "bias", "sum_dy", "sum_dy_xmu", "count")


def _arguments(torch: Any, operator: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of the types in an operator's schema, by position and by name; their values need not make sense."""
    half = "dtype" in operator._overloadname
    matrix = torch.ones(2, 2, device="cuda", dtype=torch.bfloat16 if half else torch.float32)
    matrix = matrix[None] if "bmm" in operator.__name__ else matrix
    values = {"Tensor": matrix, "int": 1, "float": 1.0, "bool": False, "number": 1, "SymInt": 1, "str": "none"}
    values |= {"Device": torch.device("cuda"), "Stream": torch.cuda.current_stream()}
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        value: Any
        if argument.name in ("dtype", "out_dtype"):
            value = torch.float32
        elif argument.name in ("counts", "running_mean", "running_var"):
            value = matrix[0].float()
        elif argument.name == "out" or (half and argument.name == "self" and "add" in operator.__name__):
            value = matrix.float()
        elif "batch_norm" in operator.__name__ and argument.name in _PER_CHANNEL and "gather" not in operator.__name__:
            value = matrix[0]
        elif argument.has_default_value():
            continue
        elif kind.startswith("Optional"):
            value = None
        elif kind.startswith("List"):
            value = [values.get(kind[5:-1], matrix)] * (argument.N or 1)
        else:
            value = values.get(kind, matrix)
        if argument.kwarg_only or len(positional) < _place_of(operator, argument):
            by_name[argument.name] = value
        else:
            positional.append(value)
    return positional, by_name


def _place_of(operator: Any, argument: Any) -> int:
    return next(place for place, each in enumerate(operator._schema.arguments) if each.name == argument.name)


_AREAS = {
    "torch.cuda": "Functions of torch.cuda",
    "torch.distributed": "Functions of torch.distributed",
    "aten": "Operators without a kernel for CPUs",
}


def page(found: dict[str, tuple[str, str]], torch: str) -> str:
    """Return the page about these states."""
    lines = [
        "# Each function under emulation",
        "",
        "<!-- Generated by `python -m scripts.emulation_page`; do not edit. -->",
        "",
        f"A program has called every public function of torch {torch} for CUDA and for process groups with emulated GPUs, on two",
        "ranks of `nccl`, and every operator that torch has no kernel for a CPU for. **As on a GPU** means that it answered.",
        "**Refused** means an error that names the function, the line and the emulation. What **differs** says how.",
        "[Emulated GPUs](emulation.md) explains the parts.",
    ]
    for area, title in _AREAS.items():
        mine = {name.removeprefix(f"{area}."): value for name, value in found.items() if name.startswith(f"{area}.")}
        lines += ["", f"## {title}", ""]
        for state in (AS_ON_A_GPU, REFUSED, FAILED):
            if names := [name for name, (its, _) in mine.items() if its == state]:
                lines.append(
                    f"**{state[0].upper()}{state[1:]}** ({len(names)}): {', '.join(f'`{name}`' for name in names)}"
                )
                lines.append("")
        if different := [(name, why) for name, (state, why) in mine.items() if state == DIFFERS]:
            lines += ["| differs | how |", "|---|---|", *(f"| `{name}` | {why} |" for name, why in different), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Walk as one of the ranks, or write the page."""
    if "--rank" in sys.argv:
        _walk_as_rank()
        return
    import torch

    found = walk()
    PAGE.write_text(page(found, torch.__version__.partition("+")[0]))
    for name, (state, why) in found.items():
        if state == FAILED:
            print(f"{name}: {why}")


if __name__ == "__main__":
    main()
