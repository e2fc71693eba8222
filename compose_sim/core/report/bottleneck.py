"""Infer from what nodes used, and how long ranks waited for data, what most likely limited training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from compose_sim.core.state.load import Load
from compose_sim.core.units import format_bytes

_LEAST_SECONDS = 10.0  # of training; a shorter run shows little but its start
_BUSY = 0.8
_MUCH_DATA = 0.3  # the share of steps that ranks wait for their data loaders
_MUCH_SENT = 200e6  # bytes per second and node: about what the sockets of a container carry before they fill a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What most likely limited the training."""

    what: Annotated[Literal["GPU", "communication", "CPU", "input"], "The limiting resource"]
    why: Annotated[str, "The numbers from which this was inferred"]


def find_bottleneck(loads: Sequence[Load], *, cpus: float, data_share: float | None = None) -> Bottleneck | None:
    """
    Return the likely bottleneck of nodes that share `cpus` CPUs; None if any of them trained too short a time, or nothing is one.

    `data_share` is the share of their steps in which ranks waited for data loaders, if that was observed.
    """
    if not loads or min(load.seconds for load in loads) < _LEAST_SECONDS:
        return None
    seconds = sum(load.seconds for load in loads) / len(loads)
    cpu = sum(load.cpu_seconds for load in loads) / seconds / cpus
    gpus = [load.gpu_seconds / load.seconds for load in loads if load.gpu_seconds is not None]
    gpu = sum(gpus) / len(gpus) if gpus else None
    sent = [load.sent_bytes / load.seconds for load in loads if load.sent_bytes is not None]
    network = sum(sent) / len(sent) if sent else None
    evidence = ", ".join(_evidence(cpu, cpus, gpu, network))
    # NCCL spins on the GPU while it waits for the network: a busy GPU means nothing while much is sent.
    if network is not None and network >= _MUCH_SENT:
        return Bottleneck(what="communication", why=evidence)
    if gpu is not None and gpu >= _BUSY:
        return Bottleneck(what="GPU", why=evidence)
    if data_share is not None and data_share >= _MUCH_DATA:
        return Bottleneck(
            what="input", why=f"ranks waited for data loaders in {data_share:.0%} of their steps; {evidence}"
        )
    return Bottleneck(what="CPU", why=evidence) if cpu >= _BUSY else None


def _evidence(cpu: float, cpus: float, gpu: float | None, network: float | None) -> list[str]:
    return [
        *([f"GPU {gpu:.0%} busy"] if gpu is not None else []),
        f"{cpu:.0%} of {cpus:g} CPUs in use",
        *([f"each node sent {format_bytes(network)}/s"] if network is not None else []),
    ]
