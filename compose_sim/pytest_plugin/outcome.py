"""Of the reports of all ranks, which is shown? That of the first rank that failed, with what the others said; else the first one's."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_TAIL = 30


@dataclass(slots=True)
class Heard:
    """What the ranks of a cluster said of one test, in the order in which it came."""

    world_size: int
    run: str
    folder: Path
    ready: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    reports: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    missing: str | None = None
    why: str | None = None  # why there is nothing more to hear
    evidence: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether every rank is done with the test."""
        return len(self.finished) == self.world_size or self.missing is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended badly on some rank, as it was meant to or not: others may wait for that rank."""
        return any(data["outcome"] == "failed" or _is_xfailed(data) for _, data in self.reports)

    @property
    def is_whole(self) -> bool:
        """Whether the cluster is good for another test."""
        return self.why is None and self.missing is None and not self.has_failed and self.is_complete

    def note(self, rank: int, line: Mapping[str, Any]) -> None:
        """One line of a rank."""
        if "ready" in line:
            self.ready.add(rank)
        elif "finished" in line:
            self.finished.add(rank)
        elif "missing" in line:
            self.missing = f"rank {rank} did not collect this test"
            self.why, self.evidence = self.missing, line["errors"]
        elif "report" in line:
            self.reports.append((rank, line["report"]))

    def note_end(self, output: str) -> None:
        """The run has ended, and said so: a report, or why it could not begin."""
        if self.is_complete:
            return
        start = output.find("{")
        try:
            report = json.loads(output[start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            report = {}
        error, cause = report.get("error"), report.get("cause")
        if error:
            self.why, self.evidence = error["message"], f"{error['evidence']}\nTry: {error['hint']}".strip()
        elif cause:
            place = f"rank {cause['rank']} on {cause['node']}: " if cause["rank"] is not None else ""
            place = "" if cause["message"].startswith(("rank ", "node-")) else place
            self.why, self.evidence = f"{place}{cause['message']}", cause["traceback"] or ""
        else:
            self.why, self.evidence = "the run ended before the test did", output.strip()


def merged(item: pytest.Item, heard: Heard, *, begun: float) -> list[pytest.TestReport]:
    """The reports of the rank that tells most."""
    shown = _rank_to_show(heard)
    reports = [_report(item, data) for rank, data in heard.reports if rank == shown]
    if any(report.failed for report in reports):
        for report in reports:
            report.sections[:] = _sections(heard, shown, report.when)
    return reports


def crashed(item: pytest.Item, heard: Heard, *, begun: float) -> list[pytest.TestReport]:
    """What there is to say where ranks had no word: why the run ended, where they stood, what they printed last."""
    if heard.has_failed:
        return merged(item, heard, begun=begun)
    places, sections = [], []
    for rank in sorted(set(range(heard.world_size)) - heard.finished):
        stack = _stack(_read(heard.folder / "shared" / "pytest" / f"stacks.{rank}"))
        if stack:
            places.append(f"rank {rank} is at {_place(stack, item)}")
            sections.append((f"where rank {rank} stood", "\n".join(stack)))
        for log in heard.folder.glob(f"logs/*.{rank}.log"):
            if words := "\n".join(_read(log).splitlines()[-_TAIL:]):
                sections.append((f"last output of rank {rank}", words))
    diagnosed = _diagnosis(heard.folder, since=begun)
    stands = diagnosed or "; ".join(places)
    lines = [f"{heard.why}" + (f": {stands}" if stands else ""), "", *heard.evidence.strip().splitlines()]
    sections.append(("composesim", f"all of it: composesim logs --run {heard.run}, composesim report {heard.run}"))
    now = time.time()
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome="failed",
        longrepr="\n".join(lines).strip(),
        when="call",
        sections=sections,
        duration=now - begun,
        start=begun,
        stop=now,
    )
    return [report]


def _report(item: pytest.Item, data: Mapping[str, Any]) -> pytest.TestReport:
    report: pytest.TestReport = item.config.hook.pytest_report_from_serializable(config=item.config, data=dict(data))
    if isinstance(data["longrepr"], list):
        path, line, reason = data["longrepr"]
        report.longrepr = (path, line, reason)  # JSON has no tuples; -rs and --junitxml take nothing else of a skip
    return report


def _rank_to_show(heard: Heard) -> int:
    """The first that failed in earnest; else one on which it failed as expected; else one that ran it, not one that skipped it."""
    failed = [rank for rank, data in heard.reports if data["outcome"] == "failed"]
    expected = [rank for rank, data in heard.reports if _is_xfailed(data)]
    strict = {rank for rank, data in heard.reports if str(data["longrepr"]).startswith("[XPASS(strict)]")}
    ran = sorted(rank for rank, data in heard.reports if data["when"] == "call" and data["outcome"] == "passed")
    for ranks in ([rank for rank in failed if rank not in strict], expected, failed, ran):
        if ranks:
            return min(ranks)
    return min((rank for rank, _ in heard.reports), default=0)


def _sections(heard: Heard, shown: int, when: str | None) -> list[tuple[str, str]]:
    """Who failed, then what each rank printed, the shown one first."""
    failed = sorted({rank for rank, data in heard.reports if data["outcome"] == "failed"})
    waiting = sorted(set(range(heard.world_size)) - heard.finished - set(failed))
    others = [rank for rank in failed if rank != shown]
    words = f"failed on rank {shown} of {heard.world_size}"
    words += f", and on rank {', '.join(map(str, others))}" if others else ""
    words += f"; rank {', '.join(map(str, waiting))} had not finished" if waiting else ""
    sections = [("composesim", words)]
    for rank in sorted({rank for rank, _ in heard.reports}, key=lambda rank: (rank != shown, rank)):
        last = [data for other, data in heard.reports if other == rank][-1]
        of_phase = next((data for other, data in heard.reports if other == rank and data["when"] == when), last)
        sections += [(f"{name} on rank {rank}", text) for name, text in of_phase["sections"]]
    return sections


def _is_xfailed(data: Mapping[str, Any]) -> bool:
    return data["outcome"] == "skipped" and data.get("wasxfail") is not None


def _diagnosis(folder: Path, *, since: float) -> str:
    """What the run itself found to be the reason why nothing moves; nothing where the test was shorter than that takes."""
    lines = _read(folder / "events" / "composesim.jsonl").splitlines()
    hangs = [event for event in map(json.loads, lines) if event["kind"] == "hang" and event["t"] >= since]
    return str(hangs[-1]["data"]["message"]) if hangs else ""


def _stack(dump: str) -> list[str]:
    """Of what faulthandler wrote, the frames of the main thread, which it writes last, up to pytest's own."""
    frames = [
        frame
        for frame in dump.rpartition("(most recent call first):\n")[2].splitlines()
        if "/.composesim/" not in frame  # our own hooks
    ]
    ends = [index for index, frame in enumerate(frames) if "/pluggy/" in frame or "/_pytest/" in frame]
    return frames[: ends[0] if ends else None]


def _place(stack: list[str], item: pytest.Item) -> str:
    """The innermost line within the project, as `test_x.py, line 12, in test_sum`."""
    root = f'"{item.config.rootpath}/'
    own = [frame for frame in stack if root in frame and "site-packages" not in frame]
    frame = (own or stack)[0].strip().removeprefix("File ")
    return frame.replace(root, "").replace('"', "").replace(" in ", ", in ")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
