"""List the private names of torch that composesim uses, and check that the installed torch still has them.

This is the only such list: a test compares it with the code. Names that only objects have, such as those of the operations that
autograd saves, cannot be checked before there is an object. They are marked by `()`, and `make matrix` tests them.

    python -m compose_sim.node.rank.torch_hooks.private_names    lists the names that the installed torch lacks
"""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any, NamedTuple

from . import features

OLDEST, NEWEST = (2, 9), (2, 15)  # the versions of torch with which all names were checked


class Private(NamedTuple):
    """A private name, or one that torch does not document: `since` and `until` are the tested versions of torch that have it."""

    feature: str  # what is switched off without it (features.WITHOUT says what that means)
    module: str
    name: str
    purpose: str
    since: str = "2.9"
    until: str = ""
    parameters: tuple[str, ...] = ()  # the first ones, as far as composesim depends on them
    cuda: bool = False  # whether only builds for CUDA have it


_C10D, _DDP = "torch.distributed.distributed_c10d", "torch.nn.parallel.distributed"
_LOADER, _OPTIMIZER, _FETCH = "torch.utils.data.dataloader", "torch.optim.optimizer", "torch.utils.data._utils.fetch"
_TENSOR = "torch.distributed.tensor"
_ITERATION = "_BaseDataLoaderIter"

NAMES = (
    # --- The emulation of CUDA: without these, there is none
    Private("emulate", "torch", "Tensor._make_subclass", "tag a new parameter with the device of its data"),
    Private("emulate", "torch", "Tensor._make_wrapper_subclass", "tag wrappers such as DTensor and jagged tensors"),
    Private("emulate", "torch._utils", "_get_obj_state", "keep the tags out of saved files", parameters=("obj",)),
    Private("emulate", "torch._C", "DisableTorchFunction", "let the CPU compute without the mode"),
    Private("emulate", "torch._C", "_EnableTorchFunction", "see what backward passes and hooks call"),
    Private("emulate", "torch._C", "_len_torch_function_stack", "call the mode directly"),
    Private("emulate", "torch._C", "_pop_torch_function_stack", "call the mode directly"),
    Private("emulate", "torch._C", "_push_on_torch_function_stack", "call the mode directly"),
    Private("emulate", "torch.overrides", "_get_current_function_mode_stack", "know whether the mode is active"),
    Private("emulate", "torch.nn.functional", "handle_torch_function", "call the mode directly"),
    Private("emulate", "torch.utils._device", "_device_constructors", "know which functions take a device"),
    Private("emulate", "torch.utils._device", "CURRENT_DEVICE", "know the default device"),
    Private("emulate", "torch.utils._device", "DeviceContext.__torch_function__", "let the default device be CUDA"),
    Private("emulate", "torch.autograd.graph", "_engine_run_backward", "see what runs in a backward pass"),
    Private("emulate", "torch.autograd", "_engine_run_backward", "see what runs in a backward pass"),
    Private("emulate", "torch._ops", "OpOverload", "recognize calls of C++ code"),
    Private("emulate", "torch._C", "_nn._parse_to", "read the device in the arguments of Module.to"),
    Private("emulate", "torch._VF", "_pack_padded_sequence", "keep batch sizes on the CPU"),
    Private("emulate", "torch._VF", "_pad_packed_sequence", "keep batch sizes on the CPU"),
    Private("emulate", "torch._C", "_nested.nested_tensor", "put nested tensors on their device"),
    Private("emulate", "torch._C", "Generator", "make generators for CUDA"),
    Private("emulate", "torch.cuda", "_lazy_init", "initialize the emulated devices"),
    Private("emulate", "torch.cuda", "_is_in_bad_fork", "refuse CUDA in forked processes"),
    Private("emulate", _C10D, "_new_process_group_helper", "make gloo groups for NCCL",
            parameters=("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name")),
    Private("emulate", _C10D, "_NCCL_AVAILABLE", "let NCCL be available"),
    Private("emulate", _C10D, "_world", "know the backend and the store of a group"),
    Private("emulate", _C10D, "_get_default_group", "know the backend of the default group"),
    Private("emulate", _C10D, "Backend.backend_type_map", "let barriers run on the CPU"),
    Private("emulate", _C10D, "ProcessGroup._get_backend", "accept CPU memory in groups of NCCL"),
    Private("emulate", _C10D, "ProcessGroup._device_types", "accept CPU memory in groups of NCCL"),
    Private("emulate", _C10D, "ProcessGroup._register_backend", "accept CPU memory in groups of NCCL"),
    Private("emulate", _C10D, "_coalescing_manager", "run coalesced collectives one by one",
            parameters=("group", "device", "async_ops")),
    Private("emulate", _C10D, "_CoalescingManager", "run coalesced collectives one by one"),
    Private("emulate", _C10D, "_get_pg_default_device", "send objects through CUDA, as NCCL must"),
    Private("emulate", _DDP, "_verify_param_shape_across_processes", "check devices before DDP's first collective",
            parameters=("process_group", "tensors")),
    Private("emulate", _OPTIMIZER, "Optimizer.profile_hook_step", "run steps without the mode", parameters=("func",)),
    Private("emulate", _OPTIMIZER, "_get_foreach_kernels_supported_devices", "fail on mixed DTensors as CUDA does"),
    # --- Parts of it
    *(Private("accelerator", "torch._C", f"_accelerator_{name}", f"torch.accelerator: {name}") for name in (
        "getAccelerator", "getDeviceIndex", "setDeviceIndex", "exchangeDevice", "maybeExchangeDevice", "getStream", "setStream",
        "synchronizeDevice", "isAllocatorInitialized", "emptyCache", "getDeviceStats", "resetAccumulatedStats", "resetPeakStats")),
    Private("accelerator", "torch._C", "_accelerator_getMemoryInfo", "torch.accelerator: getMemoryInfo", since="2.11"),
    Private("accelerator", "torch._C", "_accelerator_emptyHostCache", "torch.accelerator: emptyHostCache", since="2.13"),
    Private("accelerator", "torch._C", "_get_accelerator", "report CUDA to torch's own code"),
    Private("amp", "torch.amp.grad_scaler", "GradScaler._unscale_grads_", "divide gradients without the mode"),
    Private("amp", "torch.amp.autocast_mode", "autocast()._enabled", "enter autocast for the CPU"),
    Private("amp", "torch.amp.autocast_mode", "autocast()._cache_enabled", "enter autocast for the CPU"),
    Private("generators", "torch.cuda", "_get_generator", "torch.cuda's default generators"),
    Private("memory", "torch.cuda.memory", "_record_memory_history", "answer with an empty history"),
    Private("memory", "torch.cuda.memory", "_snapshot", "answer with an empty snapshot"),
    Private("meshes", f"{_TENSOR}._op_schema", "_rebuild_tensor_from_dtensor_meta", "make tensors on a mesh of CUDA"),
    Private("meshes", f"{_TENSOR}._random", "is_rng_supported_mesh", "draw random numbers as on the CPU"),
    Private("meshes", f"{_TENSOR}._random", "_rng_tracker", "draw random numbers as on the CPU"),
    Private("meshes", f"{_TENSOR}._dispatch", "OpDispatcher", "compare DTensors on a mesh of CUDA"),
    Private("meshes", f"{_TENSOR}.parallel.loss", "customized_loss_ops", "compute losses of sharded logits"),
    Private("refusals", "torch._C", "_broadcast_coalesced", "refuse nn.DataParallel", cuda=True),
    Private("refusals", "torch._C", "_broadcast", "refuse nn.DataParallel", cuda=True),
    Private("refusals", "torch._C", "_scatter", "refuse nn.DataParallel", cuda=True),
    Private("refusals", "torch._C", "_gather", "refuse nn.DataParallel", cuda=True),
    Private("refusals", "torch.cuda.jiterator", "_create_jit_fn", "refuse kernels compiled at run time"),
    Private("refusals", "torch.cuda.jiterator", "_create_multi_output_jit_fn", "refuse kernels compiled at run time"),
    Private("refusals", "torch.distributed._symmetric_memory", "rendezvous", "refuse symmetric memory"),
    Private("workers", "torch.multiprocessing.reductions", "reduce_tensor", "send the device along with a tensor"),
    # --- Around the script
    Private("updates_by_hand", "torch.overrides", "_get_current_function_mode_stack", "leave a mode only if it is the innermost"),
    Private("own_batches", "torch", "Tensor._base", "see all rows of which a batch is a part"),
    Private("flight_recorder", "torch._C._distributed_c10d", "_dump_nccl_trace", "read the collectives of NCCL", cuda=True),
    Private("flight_recorder", "torch._C._distributed_c10d", "_dump_nccl_trace_json", "read the collectives of NCCL", cuda=True),
    Private("flight_recorder", "torch._C._distributed_c10d", "_dump_fr_trace", "read the collectives of gloo"),
    Private("flight_recorder", "torch._C._distributed_c10d", "_dump_fr_trace_json", "read the collectives of gloo"),
    Private("flight_recorder", _C10D, "_world", "know the names of groups"),
    Private("gpu_limits", "torch._C", "_cuda_init", "set limits when CUDA is first used", cuda=True),
    Private("gpu_limits", "torch._C", "_cuda_setMemoryFraction", "limit the memory", cuda=True),
    Private("slow_gpu", "torch.cuda", "_sleep", "keep the GPU busy"),
    Private("points", "torch._dynamo", "eval_frame.skip_code", "keep the compiler out of the wrappers"),
    Private("lazy_compiler", "torch._compile", "_disable_dynamo", "not import the compiler to disable it",
            parameters=("fn", "recursive")),
    Private("lazy_compiler", _OPTIMIZER, "_use_grad_for_differentiable", "not import the compiler in each step",
            parameters=("func",)),
    # --- Observers
    Private("devices", "torch.cuda", "_lazy_init", "know when CUDA is first used"),
    Private("evaluations", "torch.nn.modules.batchnorm", "_NormBase", "recognize layers with running statistics"),
    Private("loaders", _LOADER, f"{_ITERATION}._reset", "know that persistent workers begin again", parameters=("self", "loader")),
    Private("loaders", _LOADER, f"{_ITERATION}._next_index", "know the indices of a batch", parameters=("self",)),
    Private("loaders", _LOADER, f"{_ITERATION}.__next__", "follow the batches of all kinds of loaders"),
    Private("recording", _LOADER, f"{_ITERATION}.__next__", "follow the batches of all kinds of loaders"),
    Private("models", _DDP, "DistributedDataParallel._sync_buffers", "time the broadcast of buffers", parameters=("self",)),
    Private("models", _DDP, "DistributedDataParallel.will_sync_module_buffers", "count the broadcasts of buffers"),
    Private("models", _DDP, "DistributedDataParallel()._use_python_reducer", "leave the forward pass to the compiler"),
    Private("models", "torch.nn.modules.batchnorm", "_BatchNorm", "find BatchNorm of one rank"),
    Private("profiles", "torch.autograd", "_supported_activities", "profile all that this machine has"),
    Private("randomness", _FETCH, "_MapDatasetFetcher.fetch", "count the random numbers of a batch"),
    Private("read_streams", _FETCH, "_IterableDatasetFetcher.fetch", "compare what workers read"),
    Private("randomness", _FETCH, "_IterableDatasetFetcher.fetch", "count the random numbers of a batch"),
    Private("randomness", "torch.nn.modules.dropout", "_DropoutNd", "know how many numbers a model draws"),
    Private("timings", "torch.autograd", "Variable._execution_engine", "know when the last gradient is computed"),
    Private("replay", _C10D, "_world", "know the groups that the script has made"),
    Private("replay", "torch.distributed.fsdp", "FSDPModule._get_fsdp_state", "know how FSDP2 divides gradients"),
    # --- Of objects
    Private("clipping", "torch.amp.grad_scaler", "GradScaler()._per_optimizer_states", "know whether gradients are scaled"),
    Private("clipping", f"{_TENSOR}", "DTensor()._local_tensor", "know the part that a rank holds"),
    Private("contrastive", "torch.autograd", "Node()._saved_target", "know which samples a loss compares"),
    Private("contrastive", "torch.autograd", "Node()._saved_result", "know which samples a loss compares"),
    Private("contrastive", "torch.autograd", "Node()._saved_mat2", "know which samples a loss compares"),
    Private("evaluations", "torch.amp.autocast_mode", "autocast()._enabled", "repeat what ran under autocast"),
    Private("repeats", "torch.nn", "Module()._forward_hooks", "leave models with hooks alone"),
    Private("repeats", "torch.nn", "Module()._forward_pre_hooks", "leave models with hooks alone"),
    Private("lost_results", "torch", "UntypedStorage()._cdata", "know whether a view shares a result"),
    Private("lost_results", "torch._C", "_storage_Use_Count", "know whether a view shares a result"),
    Private("sketches", "torch.autograd", "Node()._saved_reduction", "know whether a loss is a sum or a mean"),
    Private("sketches", "torch.autograd", "Node()._saved_total_weight", "know how many targets a loss counts"),
    Private("sketches", "torch.autograd", "Node()._saved_self", "find a loss multiplied by a number"),
    Private("sketches", "torch.autograd", "Node()._saved_other", "find a loss multiplied by a number"),
    Private("sketches", "torch.autograd", "Node()._saved_alpha", "find a loss multiplied by a number"),
    Private("states", "torch.distributed.fsdp", "FlatParameter()._is_flat_param", "leave sharded parameters alone"),
    Private("states", "torch.distributed.fsdp", "FlatParameter()._fsdp_flattened", "leave sharded parameters alone"),
    Private("states", "torch.nn", "Module()._non_persistent_buffers_set", "leave buffers out that are not saved"),
    Private("states", "torch.distributed", "ShardedTensor()._local_shards", "leave sharded parameters alone"),
    Private("replay", "torch.distributed.fsdp", "FullyShardedDataParallel()._handle", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FlatParameter()._unpadded_unsharded_size", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FlatParameter()._sharded_size", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FlatParameter()._shapes", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FlatParameter()._shard_param_infos", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FlatParameter()._params", "know the part that a rank holds"),
    Private("replay", "torch.distributed.fsdp", "FSDPState()._mp_policy", "know whether gradients have fewer digits"),
    Private("replay", "torch.distributed.fsdp", "FSDPState()._fsdp_param_group", "know how FSDP2 divides gradients"),
    Private("replay", "torch.distributed.fsdp", "FSDPState()._fsdp_param_groups", "know how FSDP2 divides gradients"),
    Private("replay", "torch.distributed.fsdp", "FullyShardedDataParallel()._comm_hook", "know how FSDP divides gradients"),
    Private("replay", "torch.distributed.fsdp", "FullyShardedDataParallel()._gradient_predivide_factor", "know how FSDP divides"),
    Private("replay", _DDP, "DistributedDataParallel()._comm_hooks", "know that gradients are compressed"),
    Private("replay", "torch.distributed.device_mesh", "DeviceMesh()._layout", "leave the meshes that torch derives alone"),
)  # fmt: skip


_NEEDED: dict[tuple[str, str], list[Private]] = {}
for _name in NAMES:
    _NEEDED.setdefault((_name.feature, _name.module), []).append(_name)


def has_all(feature: str, module: str) -> bool:
    """Return whether a feature is on, and torch has all names that it needs in this module; else switch it off."""
    for each in _NEEDED.get((feature, module), ()):
        if why := problem_with(each):
            features.switch_off(feature, why)
    return not features.is_off(feature)


def check(feature: str) -> str:
    """Check the names of a feature in all modules that have been imported; return why the feature is off, or ""."""
    for owner, module in _NEEDED:
        if owner == feature and module in sys.modules:
            has_all(feature, module)
    return features.why_off(feature)


def problem_with(name: Private) -> str:
    """Return what is wrong with a name, such as "torch.cuda._sleep is missing"; "" if the installed torch has it as expected."""
    if "()" in name.name or not _is_expected(name):
        return ""
    found: Any = sys.modules[name.module]
    for part in name.name.split("."):
        try:
            found = getattr(found, part, _MISSING)
        except Exception as error:  # noqa: BLE001 - a module may make its names when they are asked for
            return f"{name.module}.{name.name} cannot be read ({type(error).__name__})"
        if found is _MISSING:
            return f"{name.module}.{name.name} is missing"
    if name.parameters:
        given = _parameters_of(found)
        if given and given[: len(name.parameters)] != name.parameters:
            return f"{name.module}.{name.name} takes other arguments ({', '.join(given[:8])})"
    return ""


_MISSING = object()


def _is_expected(name: Private) -> bool:
    """Return whether the installed torch should have a name: those of torch's older versions never had it, or have lost it."""
    torch: Any = sys.modules.get("torch")
    if name.cuda and not torch.backends.cuda.is_built():
        return False
    version = version_of(str(getattr(torch, "__version__", "")))
    return version_of(name.since) <= version and not (name.until and version > version_of(name.until))


def version_of(text: str) -> tuple[int, int]:
    """Return the major and minor version in `2.15.0+cpu`; that of the newest torch tested if there is none."""
    parts = text.split(".")[:2]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(map(str.isdecimal, parts)) else NEWEST


def _parameters_of(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (NameError, TypeError, ValueError):  # a function of C, or annotations that cannot be evaluated
        return ()


def main() -> None:
    """Import every module with a private name, and print those that are missing."""
    import torch

    for name in NAMES:
        importlib.import_module(name.module)
    wrong = [f"{name.feature}: {why}" for name in NAMES if (why := problem_with(name))]
    print(f"torch {torch.__version__}: {len(NAMES)} private names, {len(wrong)} missing or changed", *wrong, sep="\n  ")


if __name__ == "__main__":
    main()
