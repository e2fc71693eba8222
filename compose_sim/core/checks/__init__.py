"""Judge whether distributed code is right, after a run.

A check is one value, a `ScriptCheck`: its id, its question, its preconditions and the rule that answers it. The decorator `check`
makes one of a function in `rules/`, and `run.py` lists and runs them all. Each has a page `docs/checks/<id>.md`.

Only rules pronounce results. What they share (`sketches`, `replica_diff`, `source`) returns facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import Cause, CheckResult
from compose_sim.core.report.report import Place as ReportPlace
from compose_sim.core.verdict.stalled_rank import Standing
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import DdpModel, OptimizerStep
from compose_sim.node.records.record import Place

PASSED: Final = "passed"
FAILED: Final = "failed"
WARNED: Final = "warned"
NOT_APPLICABLE: Final = "not-applicable"
CHECKPOINT_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".pkl", ".npz", ".tar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A finished run, seen from inside its ranks and from outside."""

    observed: Observed
    verdict: str  # how the run ended: passed, failed, hung, timeout, …
    cause: Cause | None = None  # why it ended so
    logs: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # what each rank printed, by line
    stalls: tuple[Standing, ...] = ()  # where each rank stood when nothing moved any more (core/verdict/hang.py)
    single: Observed | None = None  # the replay at world size 1, if `check` made one
    single_log: tuple[str, ...] = ()  # what it printed, by line
    alone: Mapping[int, Observed] = field(default_factory=dict)  # the replay of one rank's batches alone, by rank
    weights: Observed | None = None  # another replay at world size 1, which compares weights instead of gradients
    probed: Observed | None = None  # a second run, in which parameters were moved
    why_no_single: str = ""  # why there is no replay, if that is known
    tolerance: float = 1e-3
    sources: Mapping[str, str] = field(default_factory=dict)  # the text of the user's files, by path
    why_not: str = ""  # why no check applies: the script does not use torch.distributed

    def source_of(self, file: str) -> str:
        """Return the text of a file of the script, by the path that it has on the nodes."""
        return next((text for name, text in self.sources.items() if f"/{file}".endswith(f"/{name}")), "")

    @property
    def files_written(self) -> frozenset[str]:
        """The files that the run changed."""
        return frozenset(path for each in self.observed.of(FileUse) for path in each.changed)

    @property
    def failing_rank(self) -> int | None:
        """The rank of the cause, if it is that of one rank."""
        return self.cause.rank if self.cause else None

    @property
    def evidence(self) -> str:
        """The message and the traceback of the cause; "" if there is none."""
        return self.cause.text if self.cause else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(CheckResult):
    """The result of a check; its id is set once the check has judged."""

    id: str = ""
    judged_by: str = ""  # if not applicable: the check that compares the same in another way
    unjudged: str = ""  # if passed: what of its subject it could not compare

    def to_report(self) -> CheckResult:
        """Return the result as the report holds it."""
        return CheckResult(**{each.name: getattr(self, each.name) for each in fields(CheckResult)})


def report_place(at: Place | None) -> ReportPlace | None:
    """Return a line of the user's code as the report holds it."""
    return ReportPlace(file=at[0], line=at[1]) if at else None


def passed(detail: str, *, unjudged: str = "") -> Result:
    """Nothing is wrong; `detail` names the evidence, and `unjudged` what could not be compared."""
    return Result(status=PASSED, detail=detail, unjudged=unjudged)


def failed(detail: str, *, fix: str, at: Place | None = None, ranks: Iterable[int] = ()) -> Result:
    """The code is wrong: the evidence on one line, the fix, and a line of the user's code."""
    return Result(status=FAILED, detail=detail, fix=fix, place=report_place(at), ranks=tuple(ranks))


def warned(detail: str, *, fix: str, at: Place | None = None, ranks: Iterable[int] = ()) -> Result:
    """The code may be intentional, but often is not."""
    return replace(failed(detail, fix=fix, at=at, ranks=ranks), status=WARNED)


def not_applicable(reason: str, *, judged_by: str = "") -> Result:
    """There is nothing to judge, for this reason; another check may compare the same in another way."""
    return Result(status=NOT_APPLICABLE, detail=reason, judged_by=judged_by)


@dataclass(frozen=True, slots=True)
class Precondition:
    """A fact about a run without which there is nothing to judge, and the reason that is given if it is missing."""

    holds: Callable[[Case], bool]
    reason: str
    explain: Callable[[Observed], str] = lambda observed: ""


SEVERAL_RANKS = Precondition(lambda case: case.observed.world_size > 1, "there is only one rank")
SEVERAL_NODES = Precondition(lambda case: len(case.observed.nodes) > 1, "there is only one node")
OPTIMIZER_STEPS = Precondition(
    lambda case: case.observed.first(OptimizerStep) is not None, "no optimizer stepped", lambda each: why_no_step(each)
)
DDP_MODEL = Precondition(
    lambda case: case.observed.first(DdpModel) is not None, "no model was wrapped in DistributedDataParallel"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCheck:
    """One check: a question about a finished run, and the rule that answers it."""

    id: str
    question: str
    rule: Callable[[Case], Result]  # pure
    preconditions: tuple[Precondition, ...] = ()
    may_follow: tuple[str, ...] = ()  # the checks whose failure may be the cause of a problem, the likeliest first
    page: str = ""  # what `check --explain` prints, if it is no page of composesim

    def judge(self, case: Case) -> Result:
        """Return the result of the rule, or that a precondition does not hold."""
        missing = next((each for each in self.preconditions if not each.holds(case)), None)
        reason = missing.reason + missing.explain(case.observed) if missing else ""
        return replace(not_applicable(reason) if reason else self.rule(case), id=self.id)


def check(
    id: str, question: str, *preconditions: Precondition, may_follow: tuple[str, ...] = (), page: str = ""
) -> Callable[[Callable[[Case], Result]], ScriptCheck]:
    """Make a check of the rule that follows."""
    return lambda rule: ScriptCheck(
        id=id, question=question, rule=rule, preconditions=preconditions, may_follow=may_follow, page=page
    )


_MAX_NAMES = 5


def where(at: Place | None) -> str:
    """Return " (train.py, line 7)", or "" if the place is not known."""
    return f" ({at[0].rpartition('/')[2]}, line {at[1]})" if at else ""


def why_no_step(observed: Observed) -> str:
    """Return `: it read last.pt …` for a script that read a checkpoint and made no optimizer step; "" for any other."""
    reads = (each for each in observed.of(FileUse) if each.op == "read" and each.path.endswith(CHECKPOINT_ENDINGS))
    read = None if observed.first(OptimizerStep) else next(reads, None)
    return f": it read {read.path}{where(read.at)}, and may have taken the training to be over" if read else ""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    listed = sorted(ranks)
    return f"rank{'s'[: len(listed) > 1]} {', '.join(map(str, listed))}"


def names_text(names: Sequence[str], count: int | None = None) -> str:
    """Return the first few names, and "…" if there are more."""
    return ", ".join(names[:_MAX_NAMES]) + (" …" if (count or len(names)) > _MAX_NAMES else "")


def shape_text(shape: Iterable[int]) -> str:
    """Return "4×2"."""
    return "×".join(map(str, shape))
