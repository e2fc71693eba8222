"""How do several ranks use one GPU: through MPS, by turns, or not at all? And how much of its memory has each?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compose_sim.core.host.gpus import Gpu, Inventory
from compose_sim.core.plan.gpus.assignment import Assignment
from compose_sim.core.plan.gpus.request import label
from compose_sim.core.units import format_bytes
from compose_sim.errors import EnvironmentMissingError, SpecError

OWN, MPS, TIMESLICE = "own", "mps", "timeslice"
# What CUDA's context and NCCL's buffers of a rank are counted with; the allocator's limit does not hold for them.
CONTEXT_BYTES = 512 << 20
_LEAST_BYTES = CONTEXT_BYTES + (128 << 20)
_MOST_CLIENTS, _MOST_CLIENTS_BEFORE_TURING = 48, 16
_VOLTA, _TURING = (7, 0), (7, 5)
# Each rank keeps two threads busy while it waits for others: the script's, and NCCL's, which moves what sockets carry.
_BUSY_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one GPU is for the ranks that use it. Bytes a rank; None where nothing limits it."""

    gpu: Gpu
    mode: str
    ranks: int
    bytes_per_rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The share of each GPU by UUID, and in words why a shared one is shared so."""

    shares: Mapping[str, Share]
    why: str = ""


def decide_sharing(assignment: Assignment, inventory: Inventory, *, share: str, gpu_memory: int | None) -> Sharing:
    """
    The mode and the memory of each GPU. `share` is "auto", "mps", "timeslice" or "off"; `gpu_memory` is bytes a rank.

    SpecError where ranks do not fit on a GPU, EnvironmentMissingError where MPS was asked for and cannot be had.
    """
    shared = [gpu for gpu in assignment.gpus if assignment.ranks[gpu.uuid] > 1]
    if shared and share == "off":
        gpu = shared[0]
        raise SpecError(
            f"{assignment.ranks[gpu.uuid]} ranks would share {label(gpu)}, and '--share off' lets none share one",
            evidence=f"on it: {', '.join(assignment.sharers[gpu.uuid])}",
            hint=f"composesim up --nodes {len(assignment.gpus)} …, or leave --share out",
        )
    without_mps = next((reason for gpu in shared if (reason := why_no_mps(gpu, inventory))), "")
    if shared and share == "mps" and without_mps:
        raise EnvironmentMissingError(
            f"'--share mps' cannot be had: {without_mps}", hint="composesim up --share timeslice …"
        )
    mode = TIMESLICE if share == "timeslice" or without_mps else MPS
    shares = {}
    for gpu in assignment.gpus:
        ranks = assignment.ranks[gpu.uuid]
        if ranks > 1 and mode == MPS:
            _require_clients(gpu, ranks)
        limit = _bytes_per_rank(gpu, ranks, gpu_memory)
        shares[gpu.uuid] = Share(gpu=gpu, mode=mode if ranks > 1 else OWN, ranks=ranks, bytes_per_rank=limit)
    why = "" if not shared or mode == MPS else _slow("asked for" if share == "timeslice" else without_mps)
    return Sharing(shares=shares, why=why)


def crowds_cpus(sharing: Sharing, *, ranks: int, cpus: int) -> bool:
    """Whether so many ranks of the run, which share GPUs, would take the CPUs from one another if they waited busily."""
    return any(share.ranks > 1 for share in sharing.shares.values()) and _BUSY_THREADS * ranks >= cpus


def why_no_mps(gpu: Gpu, inventory: Inventory) -> str:
    """Why ranks cannot share this GPU through MPS; "" where they can."""
    if inventory.wsl:
        return "WSL has no MPS"
    if not inventory.toolkit.mps_control:
        return "nvidia-cuda-mps-control is not on this machine"
    if gpu.parent:
        return f"composesim starts no MPS for MIG slices ({label(gpu)})"
    if gpu.capability and gpu.capability < _VOLTA:
        return f"{gpu.model} is older than Volta"
    return ""


def _slow(reason: str) -> str:
    return f"{reason}, so ranks take turns on the GPU: on an H200 a step of 8 nodes took 161 ms so, and 5.3 ms with MPS"


def _require_clients(gpu: Gpu, ranks: int) -> None:
    most = _MOST_CLIENTS_BEFORE_TURING if gpu.capability and gpu.capability < _TURING else _MOST_CLIENTS
    if ranks > most:
        raise SpecError(
            f"{ranks} ranks on {label(gpu)} are more than the {most} clients that MPS serves on one GPU",
            hint=f"composesim up --nodes {most} …, more GPUs, or --share timeslice, which is slow",
        )


def _bytes_per_rank(gpu: Gpu, ranks: int, asked: int | None) -> int | None:
    """The rank's limit, None for a rank alone that asked for none."""
    free, each = gpu.free_bytes, gpu.free_bytes // ranks
    of = f"{format_bytes(free)} of {format_bytes(gpu.memory_bytes)} are free on {label(gpu)}"
    if asked is not None:
        if asked * ranks > free:
            raise SpecError(
                f"{ranks} × {format_bytes(asked)} of GPU memory do not fit: {of}",
                hint=f"composesim up --gpu-memory {each >> 20}m …",
            )
        each = asked
    if each < _LEAST_BYTES:
        taken = f"CUDA and NCCL are counted with {format_bytes(CONTEXT_BYTES)} before a model has any"
        raise SpecError(
            f"{format_bytes(each)} of GPU memory for each of {ranks} ranks on {label(gpu)} are too little: {taken}",
            evidence=of,
            hint=f"composesim up --nodes {max(1, free // _LEAST_BYTES)} …, or --gpus emulated",
        )
    return each if ranks > 1 or asked is not None else None
