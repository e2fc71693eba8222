"""Sum up what a node used while ranks trained."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one node used while ranks trained, summed over the samples."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    sent_bytes: int | None = None  # None if the network of the node cannot be separated from that of others
    gpu_seconds: float | None = None  # seconds times utilization; None without a GPU that reports it

    def after(
        self, *, seconds: float, cpu_seconds: float, sent_bytes: int | None = None, gpu_use: float | None = None
    ) -> Load:
        """Return the load with one more interval between two samples."""
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
