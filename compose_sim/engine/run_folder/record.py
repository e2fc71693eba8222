"""Read a run from the run folder, even after a crash: the last state, the report, and what the checks judge."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from compose_sim.core.events.events import READ_FROM_LOGS, Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.fold_ranks import count_steps
from compose_sim.core.state.state import ClusterState, is_on
from compose_sim.core.verdict.root_cause import failed_at_start
from compose_sim.core.verdict.verdict import judge
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.judging_time import judging_time
from compose_sim.engine.run_folder.node_files import files_of_nodes, folder_of
from compose_sim.engine.run_folder.safe_files import UnsafeFileError
from compose_sim.errors import OutOfTimeError
from compose_sim.node.shared.progress_page import ProgressPage

if TYPE_CHECKING:
    from compose_sim.core.report.report import Report
from pathlib import Path

from compose_sim.core.checks import Case
from compose_sim.core.events.events import parse_file_event
from compose_sim.core.events.observations import Observed, RankObserved, parse_rank
from compose_sim.core.plan.model import NODES
from compose_sim.core.report.report import HorovodTimeline, Report
from compose_sim.core.verdict.hang import standings_of
from compose_sim.engine.run_folder.folder import try_read_plan
from compose_sim.engine.run_folder.node_files import NodeFiles
from compose_sim.engine.run_folder.safe_files import MAX_BYTES, SafeFolder
from compose_sim.plugins.registry import built_in

_EVIDENCE_LINES = 20
_MAX_OF_PAGE = 1 << 16  # bytes; a page has fewer


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
                page = folder.files.read_bytes(name, size=_MAX_OF_PAGE)
                counted[node, int(rank), int(generation)] = ProgressPage.steps_in(page)
    return count_steps(state, counted)


def prepare_report() -> None:
    """Import what `build_report` needs, which takes as long as what it does."""
    from compose_sim.core.checks import run  # noqa: F401 - imported ahead of its use
    from compose_sim.core.report import make_report  # noqa: F401 - as above


def build_report(folder: RunFolder, plan: Plan, state: ClusterState, *, output: Mapping[str, str]) -> Report:
    """
    Return the report of a run that is over, with the timeline and the checks of what is left in the folder.

    A script can leave so much that reading it takes too long; then the report has only what the events say.
    """
    try:
        with judging_time():
            return _judged_report(folder, plan, state, output)
    except OutOfTimeError as error:
        from compose_sim.core.report.make_report import make_report

        report = make_report(plan, state, outputs=output)
        return replace(report, notes=(*report.notes, str(error)))


def _judged_report(folder: RunFolder, plan: Plan, state: ClusterState, output: Mapping[str, str]) -> Report:
    from compose_sim.core.checks.rules.checkpoints import with_checkpoints
    from compose_sim.core.checks.run import cause_of_crash, run_checks, why_no_check
    from compose_sim.core.checks.unexplained_ends import with_evidence
    from compose_sim.core.report.bottleneck import rank_times
    from compose_sim.core.report.make_report import make_report
    from compose_sim.core.state.timeline import Timeline
    from compose_sim.node.records.timings import StepTimes

    observed, timeline = read_observed(folder.path, state), Timeline()
    for each in observed:
        timeline.add_records(each.rank, 0, each.of(StepTimes))
    times = rank_times(timeline.tallies)
    report = make_report(plan, state, outputs=output, timeline=read_timeline(folder.path, plan.recipe), times=times)
    report = with_checkpoints(report, lambda generation: read_observed(folder.path, state, generation=generation))
    case = read_case(folder.path, report, why_not=why_no_check(plan.launcher), observed=observed)
    report = replace(report, cause=with_evidence(case))
    checks = tuple(result.to_report() for result in run_checks(replace(case, cause=report.cause)))
    return replace(report, checks=checks, cause=cause_of_crash(report.cause, checks))


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


_MAX_RECORDS = 1_000_000  # of one file
_MAX_PRINTED = 4 << 20  # of each rank; its lines take three times as much memory


def read_case(folder: Path, report: Report, *, why_not: str = "", observed: Observed | None = None) -> Case:
    """Return the case of a run: the observations, unless given, the logs and how it ended. `why_not` says why no check applies."""
    plan = try_read_plan(str(folder))  # None if it was deleted
    events = read_events(folder, plan)
    state = fold_all(plan, events) if plan else None
    return Case(
        observed=observed or read_observed(folder, state),
        verdict=report.verdict,
        cause=report.cause,
        logs=read_logs(folder, events, state),
        stalls=standings_of(state) if state else (),
        why_not=why_not,
    )


def read_timeline(folder: Path, recipe: str) -> HorovodTimeline | None:
    """Return what the timeline of a recipe's framework shows; None if there is no timeline, or it is empty."""
    files, parser = SafeFolder(folder), built_in("composesim.timelines").get(recipe)
    for above in (
        "",
        *(f"{NODES}/{node}/" for node in files.folders(NODES)),
    ):  # rank 0's node has it, usually the first
        name = f"{above}logs/timeline.json"
        status = files.status(name)
        if parser and status and status.st_size <= MAX_BYTES:
            return cast(HorovodTimeline | None, parser.load()(files.read_text(name), file=name))
    return None


def _may_tell(state: ClusterState | None, node: str, rank: int, generation: int | None) -> bool:
    return state is None or is_on(state, node, rank, generation)


def read_observed(
    folder: Path,
    state: ClusterState | None = None,
    *,
    generation: int | None = None,
    moved: tuple[Path, Path] | None = None,
) -> Observed:
    """
    Return what each rank observed in the round of this generation; without one, in the last round of the run.

    With the last state, only what the node of the rank has written counts. What ran in a copy of a project is read as if it had
    run in the project: `moved` has both folders.
    """
    files = SafeFolder(folder)
    newest: dict[int, tuple[int, str, str]] = {}
    for name in files_of_nodes(files, "observations", ".jsonl"):
        node, rank, number = ["", "", *PurePath(name).stem.rsplit(".", 2)][-3:]
        told = node and rank.isdecimal() and number.isdecimal() and generation in (None, int(number))
        if told and _may_tell(state, node, int(rank), int(number)):
            newest[int(rank)] = max(newest.get(int(rank), (-1, "", "")), (int(number), node, name))
    last = max((at for at, _, _ in newest.values()), default=0)
    # Files are recorded without symbolic links, and lines of code as they were called
    moves = [
        [json.dumps(str(each))[1:-1] for each in pair]
        for pair in (moved, moved and [*map(os.path.realpath, moved)])
        if pair
    ]

    def lines_of(file: str) -> list[str]:
        lines = _records(files, file)
        for copy, project in moves:
            lines = [line.replace(copy, project) for line in lines]
        return lines

    ranks: dict[int, RankObserved] = {
        rank: parse_rank(node, rank, lines_of(name)) for rank, (at, node, name) in newest.items() if at == last
    }
    return Observed(ranks=ranks)


def read_rounds(folder: Path) -> list[Observed]:
    """Return what the ranks observed in each round of the run, in order."""
    numbers = {
        PurePath(name).stem.rpartition(".")[2] for name in files_of_nodes(SafeFolder(folder), "observations", ".jsonl")
    }
    return [
        read_observed(folder, generation=each) for each in sorted(int(each) for each in numbers if each.isdecimal())
    ]


def read_logs(folder: Path, events: list[Event], state: ClusterState | None = None) -> dict[int, tuple[str, ...]]:
    """
    Return what each rank printed in the last round, by line, up to _MAX_PRINTED bytes.

    A rank may have run on another node before, with other output. With the last state, only its node counts.
    """
    rounds = [event for event in events if event.kind == "rendezvous" and event.data.get("logs")]
    last = max((event.generation or 0 for event in rounds), default=0)
    if state and state.generation is not None:
        last = state.generation
    begins = {
        f"{event.node}.{rank}.log": int(begins_at)
        for event in rounds
        if event.generation == last
        for rank, begins_at in event.data["logs"].items()
    }
    logs, files = {}, SafeFolder(folder)
    for name in files_of_nodes(files, "logs", ".log"):
        log = PurePath(name).name
        node, _, rank = log.removesuffix(".log").rpartition(".")
        if rank.isdecimal() and (log in begins or not begins) and _may_tell(state, node, int(rank), None):
            logs[int(rank)] = tuple(_lines(files, name, begins.get(log, 0), _MAX_PRINTED))
    return logs


def read_events(folder: Path, plan: Plan | None = None) -> list[Event]:
    """Return all events of the run, in order of time; with a plan, those of its nodes."""
    files = SafeFolder(folder)
    parsed = [
        parse_file_event(line, PurePath(name).stem)
        for name in NodeFiles(files, plan).event_files()
        for line in _records(files, name)
    ]
    return sorted((event for event in parsed if event), key=lambda event: event.t)


def _records(files: SafeFolder, name: str) -> list[str]:
    """Return the lines of a file of records; a node that writes only line ends takes no more than one that writes records."""
    try:
        text = files.read_bytes(name).decode("utf-8", "replace")
    except (OSError, UnsafeFileError):  # a node made it unreadable
        return []
    return [line for line in text.split("\n", _MAX_RECORDS)[:_MAX_RECORDS] if line]


def _lines(files: SafeFolder, name: str, begins_at: int, most: int) -> list[str]:
    """Return the lines in a part of a file: a run that wrote more is judged by the beginning."""
    try:
        return files.read_bytes(name, offset=begins_at, size=most).decode("utf-8", "replace").splitlines()
    except (OSError, UnsafeFileError):  # a node made it unreadable
        return []
