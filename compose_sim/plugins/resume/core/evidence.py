"""The evidence of the three runs of `check --resume`, and the judgement about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from compose_sim.core.checks import where
from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, CheckResult
from compose_sim.core.report.report import Place as ReportPlace
from compose_sim.core.report.tracebacks import innermost_line
from compose_sim.node.records.record import Place
from compose_sim.node.records.resumption import InterruptedHere
from compose_sim.plugins.resume.core.checkpoints import Interruption
from compose_sim.plugins.resume.core.findings import MissingState
from compose_sim.plugins.resume.core.script_options import ScriptOption

ID = "resume"
Status = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended."""

    verdict: str
    cause: Cause | None = None

    @property
    def text(self) -> str:
        """The cause on one line."""
        return self.cause.first_line if self.cause else ""

    @property
    def raised_at(self) -> Place | None:
        """The innermost line of the user's code in the traceback, if there is one."""
        return innermost_line((self.cause.traceback or "") if self.cause else "")

    @property
    def is_failure(self) -> bool:
        """Whether the run did not end as it should."""
        return self.verdict not in ("passed", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeRuns:
    """The three runs of `check --resume`."""

    whole: Observed
    interrupted: Observed
    resumed: Observed
    interruption: Interruption
    ending: Ending  # of the resumed run
    cut: Ending = field(default_factory=lambda: Ending(verdict="failed"))  # of the interrupted one
    typed: tuple[str, ...] = ("check", "--resume", "SCRIPT")  # the command, after `composesim`
    switch: str = ""  # an option of the script that seems to resume, and was not given
    interval: ScriptOption | None = None  # that says after how many steps it saves
    torn: str = ""  # the file that was being written when the run was killed
    is_torn_first: bool = False  # whether no other checkpoint was complete by then
    has_other_hashes: bool = False  # whether the resumed run has another seed of Python's hashes than the others
    is_one_run: bool = False  # whether these are rounds of one run, of which the first two are the same one
    copied: bool = False  # whether files were given other time stamps in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict, and all that is missing: first what shows first."""

    status: Status
    text: str
    findings: tuple[MissingState, ...] = ()

    def to_check(self) -> CheckResult:
        """Return the judgement as a report holds it; an inconclusive one is not applicable."""
        if not self.findings:
            status: Literal["passed", "not-applicable"] = "passed" if self.status == "passed" else "not-applicable"
            return CheckResult(id=ID, status=status, detail=self.text)
        first, *others = self.findings
        fixes = [
            first.fix,
            *(f"{each.missing}: {each.fix}{where(each.at)}" for each in others if each.fix != first.fix),
        ]
        return CheckResult(
            id=ID,
            status="failed",
            detail=self.text,
            fix=". ".join(fixes),
            place=ReportPlace(file=first.at[0], line=first.at[1]) if first.at else None,
            ranks=first.ranks,
        )


def was_interrupted(run: Observed) -> bool:
    """Whether the run came to the point at which it was to be interrupted."""
    return run.first(InterruptedHere) is not None
