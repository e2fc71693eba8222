"""What most likely held the training back: input, CPU, communication or GPU? From what nodes used while their ranks trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compose_sim.core.units import format_bytes

_LEAST_SECONDS = 10.0  # of training; less tells of its beginning
_BUSY = 0.8
_MUCH_SENT = 200e6  # bytes a second and node: about what the sockets of a container carry before they fill a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one node used while its ranks trained, summed over its samples."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sent_bytes: int | None = None  # None where a node's network cannot be told from others'
    gpu_seconds: float | None = None  # seconds times use; None without a GPU that tells

    def after(
        self, *, seconds: float, cpu_seconds: float, sent_bytes: int | None = None, gpu_use: float | None = None
    ) -> Load:
        """The load with one more stretch between two samples."""
        sent = self.sent_bytes if sent_bytes is None else (self.sent_bytes or 0) + sent_bytes
        gpu = self.gpu_seconds if gpu_use is None else (self.gpu_seconds or 0.0) + gpu_use * seconds
        return replace(
            self,
            seconds=self.seconds + seconds,
            cpu_seconds=self.cpu_seconds + cpu_seconds,
            sent_bytes=sent,
            gpu_seconds=gpu,
        )


NO_LOAD = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """`what` is GPU, communication, CPU or input; `why` has the numbers that speak for it."""

    what: str
    why: str


def find_bottleneck(loads: Sequence[Load], *, cpus: float) -> Bottleneck | None:
    """The likely one of all nodes together, which have so many CPUs; None where they trained too short a time to tell."""
    if not loads or min(load.seconds for load in loads) < _LEAST_SECONDS:
        return None
    seconds = sum(load.seconds for load in loads) / len(loads)
    cpu = sum(load.cpu_seconds for load in loads) / seconds / cpus
    gpus = [load.gpu_seconds / load.seconds for load in loads if load.gpu_seconds is not None]
    gpu = sum(gpus) / len(gpus) if gpus else None
    sent = [load.sent_bytes / load.seconds for load in loads if load.sent_bytes is not None]
    network = sum(sent) / len(sent) if sent else None
    words = ", ".join(_words(cpu, cpus, gpu, network))
    # NCCL spins on the GPU while it waits for the network: a busy GPU says nothing while much is sent.
    if network is not None and network >= _MUCH_SENT:
        return Bottleneck(what="communication", why=words)
    if gpu is not None and gpu >= _BUSY:
        return Bottleneck(what="GPU", why=words)
    if cpu >= _BUSY:
        return Bottleneck(what="CPU", why=words)
    return Bottleneck(what="input", why=f"{words}: ranks waited, for data or for one another")


def _words(cpu: float, cpus: float, gpu: float | None, network: float | None) -> list[str]:
    words = [f"{cpu:.0%} of {cpus:g} CPUs in use"]
    if gpu is not None:
        words.insert(0, f"GPU {gpu:.0%} busy")
    if network is not None:
        words.append(f"each node sent {format_bytes(network)} a second")
    return words
