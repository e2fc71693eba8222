"""Find the checkpoint that ranks wrote between the notice of a preemption and the end of their round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import FaultReport, Report
from compose_sim.node.records.devices_and_files import FileUse


def with_checkpoints(report: Report, observed_in: Callable[[int], Observed]) -> Report:
    """
    Add to each preemption of a report the last file that was complete after SIGTERM, on any rank of that round.

    Ranks often agree on a preemption, and then rank 0 writes, wherever it runs. A file is complete when torch.save returns, or
    when it is renamed; what another library writes without a rename is not seen. `observed_in` returns the observations of a
    generation.
    """
    started = report.timings.started_at
    if started is None:
        return report
    return replace(
        report,
        faults=tuple(
            _with_checkpoint(fault, started + (fault.begun_s or 0.0), observed_in(_generation_at(report, fault)))
            if fault.kind == "preempt"
            else fault
            for fault in report.faults
        ),
    )


def _with_checkpoint(fault: FaultReport, begun_at: float, observed: Observed) -> FaultReport:
    complete = [each for each in observed.of(FileUse) if each.op in ("written", "rename") and each.t >= begun_at]
    last = max(complete, key=lambda each: each.t, default=None)
    if last is None:
        return fault
    return replace(fault, checkpoint=last.to or last.path, checkpoint_s=round(last.t - begun_at, 3))


def _generation_at(report: Report, fault: FaultReport) -> int:
    """Return the generation of the round that was under way when a fault began."""
    began = fault.begun_s or 0.0
    return max((each.generation for each in report.rounds if (each.began_s or 0.0) <= began), default=0)
