"""Switch off single features of composesim in a rank, and say so: a torch that lacks what they need must still train.

A feature is named after the module that implements it, such as `collectives` for `observers/collectives.py`. It is switched off
if torch lacks a private name that it needs (`private_names.py`), or once its code has raised.
"""

from __future__ import annotations

import sys
from typing import Callable

# What composesim does not do without a feature; plug-ins add theirs. Those that are not listed observe, or are part of the emulation.
WITHOUT = {
    "emulate": "CUDA cannot be emulated",
    "accelerator": "torch.accelerator does not know emulated GPUs",
    "amp": "autocast for emulated GPUs does not change any type",
    "generators": "emulated GPUs share the random numbers of the CPU",
    "memory": "the memory of emulated GPUs is not reported",
    "meshes": "DTensor and FSDP2 may not work on emulated GPUs",
    "nvml": "the use of emulated GPUs is not reported",
    "profiling": "torch's profiler may look for a real GPU",
    "refusals": "unsupported features of CUDA may not be refused",
    "streams": "streams and events of emulated GPUs do not exist",
    "workers": "tensors on emulated GPUs cannot be sent to another process",
    "fault_handler": "a fault cannot be injected into this rank",
    "flight_recorder": "pending collectives are not named if a rank hangs",
    "gpu_limits": "the memory and CPUs of ranks that share a GPU are not limited",
    "points": "compiled code may be slower",
    "lazy_compiler": "every script imports the compiler, which takes seconds",
    "slow_gpu": "a GPU cannot be slowed down",
    "boundaries": "gradients between stages are not recorded",
    "checkpoints": "saved and loaded checkpoints are not recorded",
    "clipping": "the clipping of gradients is not recorded",
    "collectives": "collectives are not recorded",
    "contrastive": "contrastive losses are not recorded",
    "devices": "the choice of GPUs is not recorded",
    "endings": "exceptions after the training are not recorded",
    "evaluations": "evaluations are not recorded",
    "files": "the use of files is not recorded",
    "gathers": "gathered tensors are not recorded",
    "gradients": "gradients are not recorded",
    "groups": "process groups are not recorded",
    "kept_tensors": "tensors of hand-written optimizers are not recorded",
    "loaded_generators": "draws from generators whose state was loaded are not recorded",
    "loaders": "loaded batches are not recorded",
    "losses": "losses are not recorded",
    "lost_results": "results of collectives that are lost are not recorded",
    "mistakes": "no mistake can be planted",
    "messages": "messages between ranks are not recorded",
    "models": "models in DistributedDataParallel are not recorded",
    "norms_of_parts": "norms of the parts of a tensor are not recorded",
    "numbered_names": "dicts that number names are not recorded",
    "optimizers": "steps of optimizers are not recorded",
    "own_batches": "batches without a loader are not recorded",
    "parameter_names": "parameters are not named",
    "plain_tensors": "tensors that modules keep as attributes are not recorded",
    "profiles": "a profile cannot be recorded",
    "randomness": "random numbers are not recorded",
    "read_streams": "samples of streams are not recorded",
    "recording": "the first steps are not recorded",
    "reduced_again": "counts that are reduced again are not recorded",
    "repeats": "repeated passes are not recorded",
    "replay": "the run cannot be repeated on one rank",
    "replaying": "the run cannot be repeated on one rank",
    "replicated": "replicated tensors are not recorded",
    "running_statistics": "running statistics are not recorded",
    "schedules": "schedules of learning rates are not recorded",
    "sent_models": "buffers of models whose parameters are sent are not recorded",
    "shared_buffers": "lists of received parts are not recorded",
    "sketches": "sketches of gradients are not recorded",
    "slopes": "gradients are not compared with the loss",
    "states": "parameters are not recorded",
    "updates_by_hand": "updates without an optimizer are not followed",
    "timings": "backward passes are not timed",
}
_PARENTS = ("observers", "emulate", "torch_hooks", "agent", "faults")

_off: dict[str, tuple[str, str]] = {}  # feature -> the sentence, and a traceback if there is one
_tell: Callable[[str, str, str], None] | None = None


def feature_of(module: str) -> str:
    """Return the feature of a module: `collectives` for `….rank.observers.collectives`, the name of a plug-in for its modules."""
    if ".plugins." in module:
        return module.split(".plugins.")[1].split(".")[0]
    parts = module.partition(".rank.")[2].split(".") if ".rank." in module else [module]
    return parts[1] if parts[0] in _PARENTS and len(parts) > 1 else parts[0]


def is_off(feature: str) -> bool:
    """Return whether a feature has been switched off in this process, or in the one from which it was forked."""
    return feature in _off


def switch_off(feature: str, why: str) -> None:
    """Switch a feature off that torch does not support, and report it: `torch 2.16.0: collectives are not recorded, because …`."""
    _switch_off(feature, f"torch {_version()}: {_without(feature)}, because {why}")


def raised(feature: str, what: str, traceback: str = "") -> None:
    """Switch a feature off whose own code has raised."""
    _switch_off(
        feature, f"composesim with torch {_version()}: {_without(feature)}, because its code raised {what}", traceback
    )


def _switch_off(feature: str, sentence: str, traceback: str = "") -> None:
    if feature not in _off:
        _off[feature] = sentence, traceback
        if _tell is not None:
            _tell(feature, sentence, traceback)


def _version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "of an unknown version"))


def _without(feature: str) -> str:
    return WITHOUT.get(feature, f"{feature} is switched off")


def report_to(tell: Callable[[str, str, str], None]) -> None:
    """Call `tell(feature, sentence, traceback)` for each feature that is off already, and for each that is switched off later."""
    global _tell
    _tell = tell
    for feature, (sentence, traceback) in _off.items():
        tell(feature, sentence, traceback)


def why_off(feature: str) -> str:
    """Return the sentence that says that a feature is off; "" if it is on."""
    return _off[feature][0] if feature in _off else ""
