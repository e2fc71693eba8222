"""Read a run from the run folder: the last state, and the report, even after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from compose_sim.core.events.events import READ_FROM_LOGS, Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.fold_ranks import count_steps
from compose_sim.core.state.state import ClusterState, is_on
from compose_sim.core.verdict.root_cause import failed_at_start
from compose_sim.core.verdict.verdict import judge
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.file_checks import UnsafeFileError
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import files_of_nodes, folder_of
from compose_sim.node.shared.progress_page import ProgressPage

if TYPE_CHECKING:
    from compose_sim.core.report.report import Report

_EVIDENCE_LINES = 20
_MOST_OF_PAGE = 1 << 16  # bytes; a page has fewer


def read_state(folder: RunFolder, *, metrics: bool = True) -> tuple[Plan, ClusterState]:
    """Return the plan of a run and the current state, from files alone; without `metrics` the logs are not read."""
    plan = folder.read_plan()
    tail = EventTail(folder.path, plan, logs=metrics)
    events = [event for batch in tail.finish() for event in batch if event.kind != "log"]
    tail.close()
    return plan, with_counted_steps(folder, fold_all(plan, _in_order(events)))


def with_counted_steps(folder: RunFolder, state: ClusterState) -> ClusterState:
    """Return the state with the steps that each rank counted, whether or not it could still report them as events."""
    counted = {}
    for name in files_of_nodes(folder.files, "observations", ".progress"):
        node, rank, generation = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
        with suppress(OSError, UnsafeFileError, ValueError):
            if is_on(state, node, int(rank), int(generation)):
                page = folder.files.read_bytes(name, size=_MOST_OF_PAGE)
                counted[node, int(rank), int(generation)] = ProgressPage.steps_in(page)
    return count_steps(state, counted)


def prepare_report() -> None:
    """Import what `build_report` needs, which takes as long as what it does."""
    from compose_sim.core.checks import run  # noqa: F401 - imported ahead of its use
    from compose_sim.core.report import make_report  # noqa: F401 - as above
    from compose_sim.engine.run_folder import check_inputs  # noqa: F401 - as above


def build_report(folder: RunFolder, plan: Plan, state: ClusterState, *, output: Mapping[str, str]) -> Report:
    """Return the report of a run that is over, with the timeline and the checks of what is left in the folder."""
    from compose_sim.core.checks.rules.checkpoints import with_checkpoints
    from compose_sim.core.checks.run import run_checks, why_no_check
    from compose_sim.core.report.bottleneck import rank_times
    from compose_sim.core.report.make_report import make_report
    from compose_sim.core.state.timeline import Timeline
    from compose_sim.engine.run_folder.check_inputs import read_case, read_observed, read_timeline
    from compose_sim.node.records.timings import StepTimes

    observed, timeline = read_observed(folder.path, state), Timeline()
    for each in observed:
        timeline.add_records(each.rank, 0, each.of(StepTimes))
    times = rank_times(timeline.tallies)
    report = make_report(plan, state, outputs=output, timeline=read_timeline(folder.path), times=times)
    report = with_checkpoints(report, lambda generation: read_observed(folder.path, state, generation=generation))
    results = run_checks(read_case(folder.path, report, why_not=why_no_check(plan.launcher), observed=observed))
    return replace(report, checks=tuple(result.to_report() for result in results))


def report_of(folder: RunFolder) -> Report:
    """Return the report that the run wrote; if the run was killed before that, one made from the plan and events."""
    report = folder.read_report()
    if report:
        return report
    plan, state = read_state(folder)
    return build_report(folder, plan, state, output=last_output(folder, state))


def verdict_of(folder: RunFolder) -> tuple[str, str]:
    """Return the engine and the verdict of a run that is over, without running checks on a run that was killed."""
    report = folder.read_report()
    if report:
        return report.engine, report.verdict
    plan, state = read_state(folder, metrics=False)
    return plan.engine, judge(state, last_output(folder, state)).word


def last_output(folder: RunFolder, state: ClusterState) -> dict[str, str]:
    """Return the last lines in the log of each node that failed before it started a rank; "" if there is no log."""
    output = {}
    for name in failed_at_start(state):
        log = f"{folder_of(folder.files, name)}logs/{name}.log"
        text = folder.files.read_text(log) if folder.files.status(log) else ""
        output[name] = "\n".join(text.splitlines()[-_EVIDENCE_LINES:])
    return output


def _in_order(events: list[Event]) -> list[Event]:
    """Return events by time. Lines of logs have no time; they take that of the last event."""
    last = max((event.t for event in events if event.kind not in READ_FROM_LOGS), default=0.0)
    stamped = (
        replace(event, t=last) if event.kind in READ_FROM_LOGS else event for event in events if event.kind != "log"
    )
    return sorted(stamped, key=lambda event: event.t)
