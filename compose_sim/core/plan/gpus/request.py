"""Look up the GPUs that `--gpus` names or that `auto` uses."""

from __future__ import annotations

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.units import format_bytes
from compose_sim.errors import EnvironmentMissingError, SpecError


def named_gpus(text: str, inventory: Inventory) -> tuple[Gpu, ...]:
    """Return the GPUs that `0,1`, or UUIDs or their prefixes, name. A SpecError lists the GPUs of this machine."""
    require_gpus(inventory, f"--gpus {text}")
    return tuple(_one(name, inventory) for name in text.split(","))


def require_gpus(inventory: Inventory, asked: str) -> None:
    """Raise EnvironmentMissingError if there is no GPU for `asked`."""
    if inventory.gpus:
        return
    why = inventory.problem or "this machine has none"
    hint = inventory.hint or "composesim up --gpus emulated …, which emulates CUDA on the CPU"
    raise EnvironmentMissingError(f"'{asked}' needs an NVIDIA GPU: {why}", hint=hint)


def eligible_gpus(inventory: Inventory) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that `auto` uses, and why not the others: those of one model, and no busy ones if any is free."""
    by_model: dict[str, list[Gpu]] = {}
    for gpu in inventory.gpus:
        by_model.setdefault(f"{gpu.model} {gpu.profile}".strip(), []).append(gpu)
    model = max(by_model, key=lambda name: sum(gpu.memory_bytes for gpu in by_model[name]), default="")
    chosen = by_model.get(model, [])
    free = [gpu for gpu in chosen if not gpu.is_busy]
    left_out = [f"the {name} is another model" for name in by_model if name != model]
    left_out += [
        f"{label(gpu)} is busy ({format_bytes(gpu.used_bytes)} used by {', '.join(gpu.processes[:3])})"
        for gpu in chosen
        if gpu.is_busy and free
    ]
    return tuple(free or chosen), "; ".join(left_out)


def label(gpu: Gpu) -> str:
    """Return `GPU 0` or `MIG slice 0:1`."""
    return f"MIG slice {gpu.index}" if gpu.parent else f"GPU {gpu.index}"


def _one(name: str, inventory: Inventory) -> Gpu:
    found = [gpu for gpu in inventory.gpus if gpu.index == name or gpu.uuid == name]
    found = found or [gpu for gpu in inventory.gpus if "-" in name and gpu.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"'{name}' is a prefix of {len(found)} UUIDs" if found else f"this machine has no GPU '{name}'"
    slices = [gpu for gpu in inventory.gpus if gpu.parent and (gpu.parent == name or gpu.index.startswith(f"{name}:"))]
    if slices:
        problem = f"GPU '{name}' is divided into MIG slices: name one of those"
    listed = "\n".join(f"{gpu.index:>4}  {gpu.uuid}  {gpu.model} {gpu.profile}".rstrip() for gpu in inventory.gpus)
    raise SpecError(problem, evidence=listed, hint=f"composesim up --gpus {inventory.gpus[0].index} …")
