"""Choose the report to show from those of all ranks: that of the first rank that failed, else that of the first rank."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_TAIL = 30
_AHEAD = time.time() - time.monotonic()


@dataclass(slots=True)
class RankReports:
    """What the ranks of a cluster reported about one test, in the order of arrival."""

    world_size: int
    run: str
    folder: Path
    ready: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    reports: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    missing: str | None = None
    problem: str | None = None  # why the ranks report nothing more
    evidence: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether every rank has finished the test."""
        return len(self.finished) == self.world_size or self.missing is not None

    @property
    def has_failed(self) -> bool:
        """Whether it failed on a rank, expectedly or not: other ranks may wait for that rank."""
        return any(data["outcome"] == "failed" or _is_xfailed(data) for _, data in self.reports)

    @property
    def is_cluster_usable(self) -> bool:
        """Whether the cluster can run another test."""
        return self.problem is None and self.missing is None and not self.has_failed and self.is_complete

    def note(self, rank: int, line: Mapping[str, Any]) -> None:
        """Note one line of a rank."""
        if "ready" in line:
            self.ready.add(rank)
        elif "finished" in line:
            self.finished.add(rank)
        elif "missing" in line:
            self.missing = f"rank {rank} did not collect this test"
            self.problem, self.evidence = self.missing, line["errors"]
        elif "report" in line:
            self.reports.append((rank, line["report"]))

    def note_end(self, output: str) -> None:
        """Note why the run ended, given what it printed: a report, or the error that kept it from starting."""
        from compose_sim.core.report.report import (
            Report,  # only when needed: pytest loads this plugin for every project
        )

        if self.is_complete:
            return
        start = output.find("{")
        try:
            values = json.loads(output[start:]) if start >= 0 else {}
            error = values.get("error")
            cause = Report.from_dict(values).cause if values and not error else None
        except ValueError:
            error = cause = None
        if error:
            self.problem, self.evidence = error["message"], f"{error['evidence']}\nTry: {error['hint']}".strip()
        elif cause:
            place = f"rank {cause.rank} on {cause.node}: " if cause.rank is not None else ""
            place = "" if cause.message.startswith(("rank ", "node-")) else place
            self.problem, self.evidence = f"{place}{cause.message}", cause.traceback or ""
        else:
            self.problem, self.evidence = "the run ended before the test", output.strip()


def now() -> float:
    """Return Unix time that does not jump when the machine's clock is set."""
    return _AHEAD + time.monotonic()


def reports_to_show(item: pytest.Item, received: RankReports, *, started: float) -> list[pytest.TestReport]:
    """Return the most informative rank's reports, or a report about the run if no rank failed and not all finished."""
    if received.problem and not received.has_failed:
        return [_report_of_run(item, received, started=started)]
    shown = _rank_to_show(received)
    reports = [_report(item, data) for rank, data in received.reports if rank == shown]
    if any(report.failed for report in reports):
        for report in reports:
            report.sections[:] = _sections(received, shown, report.when)
    return reports


def _report_of_run(item: pytest.Item, received: RankReports, *, started: float) -> pytest.TestReport:
    """Return a report on ranks that did not finish: why the run ended, where they are, what they printed last."""
    places, sections = [], []
    for rank in sorted(set(range(received.world_size)) - received.finished):
        stack = _stack(_read(received.folder / "shared" / "pytest" / f"stacks.{rank}"))
        if stack:
            places.append(f"rank {rank} is at {_place(stack, item)}")
            sections.append((f"where rank {rank} is", "\n".join(stack)))
        for log in received.folder.glob(f"**/logs/*.{rank}.log"):
            if words := "\n".join(_read(log).splitlines()[-_TAIL:]):
                sections.append((f"last output of rank {rank}", words))
    diagnosis = diagnosis_of(received.folder, since=started)
    place = diagnosis or "; ".join(places)
    lines = [f"{received.problem}" + (f": {place}" if place else ""), "", *received.evidence.strip().splitlines()]
    sections.append(("composesim", f"More: composesim logs --run {received.run}, composesim report {received.run}"))
    stopped = now()
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome="failed",
        longrepr="\n".join(lines).strip(),
        when="call",
        sections=sections,
        duration=stopped - started,
        start=started,
        stop=stopped,
    )


def _report(item: pytest.Item, data: Mapping[str, Any]) -> pytest.TestReport:
    report: pytest.TestReport = item.config.hook.pytest_report_from_serializable(config=item.config, data=dict(data))
    if isinstance(data["longrepr"], list):
        path, line, reason = data["longrepr"]
        report.longrepr = (path, line, reason)  # JSON has no tuples, and -rs and --junitxml need one
    return report


def _rank_to_show(received: RankReports) -> int:
    """Return the first rank that failed unexpectedly, else one that failed as expected, else one that did not skip the test."""
    failed = [rank for rank, data in received.reports if data["outcome"] == "failed"]
    expected = [rank for rank, data in received.reports if _is_xfailed(data)]
    strict = {rank for rank, data in received.reports if str(data["longrepr"]).startswith("[XPASS(strict)]")}
    ran = sorted(rank for rank, data in received.reports if data["when"] == "call" and data["outcome"] == "passed")
    for ranks in ([rank for rank in failed if rank not in strict], expected, failed, ran):
        if ranks:
            return min(ranks)
    return min((rank for rank, _ in received.reports), default=0)


def _sections(received: RankReports, shown: int, when: str | None) -> list[tuple[str, str]]:
    """Return which ranks failed, then what each printed, starting with the one that is shown."""
    failed = sorted({rank for rank, data in received.reports if data["outcome"] == "failed"})
    waiting = sorted(set(range(received.world_size)) - received.finished - set(failed))
    others = [rank for rank in failed if rank != shown]
    words = f"failed on rank {shown} of {received.world_size}"
    words += f", and on rank {', '.join(map(str, others))}" if others else ""
    words += f"; rank {', '.join(map(str, waiting))} had not finished" if waiting else ""
    sections = [("composesim", words)]
    for rank in sorted({rank for rank, _ in received.reports}, key=lambda rank: (rank != shown, rank)):
        last = [data for other, data in received.reports if other == rank][-1]
        of_phase = next((data for other, data in received.reports if other == rank and data["when"] == when), last)
        sections += [(f"{name} on rank {rank}", text) for name, text in of_phase["sections"]]
    return sections


def _is_xfailed(data: Mapping[str, Any]) -> bool:
    return data["outcome"] == "skipped" and data.get("wasxfail") is not None


def diagnosis_of(folder: Path, *, since: float, only_final: bool = False) -> str:
    """Return why no rank moves, if the run has a diagnosis, or one that nothing can change; a short test ends before that."""
    lines = _read(folder / "journal" / "composesim.jsonl").splitlines()
    hangs = [event for event in map(json.loads, lines) if event["kind"] == "hang" and event["t"] >= since]
    if only_final:
        hangs = [event for event in hangs if event["data"].get("final")]
    return str(hangs[-1]["data"]["message"]) if hangs else ""


def _stack(dump: str) -> list[str]:
    """Return the frames of the main thread, which faulthandler writes last, without those of pytest."""
    frames = [
        frame
        for frame in dump.rpartition("(most recent call first):\n")[2].splitlines()
        if "/.composesim/" not in frame  # our own hooks
    ]
    ends = [index for index, frame in enumerate(frames) if "/pluggy/" in frame or "/_pytest/" in frame]
    return frames[: ends[0] if ends else None]


def _place(stack: list[str], item: pytest.Item) -> str:
    """Return the innermost line of the project, such as `test_x.py, line 12, in test_sum`."""
    root = f'"{item.config.rootpath}/'
    own = [frame for frame in stack if root in frame and "site-packages" not in frame]
    frame = (own or stack)[0].strip().removeprefix("File ")
    return frame.replace(root, "").replace('"', "").replace(" in ", ", in ")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
