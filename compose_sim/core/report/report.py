"""Define the report of a run: one frozen value that every command writes, reads, prints and returns.

`templates/report.schema.json` is generated from these classes. Fields are added within a schema version; existing ones never change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from compose_sim.core.json_values import from_json, to_json
from compose_sim.core.plan.model import Choice, Plan, PlannedPort
from compose_sim.core.report.bottleneck import Bottleneck, RankTimes
from compose_sim.core.text import format_seconds
from compose_sim.core.verdict.root_cause import is_consequence
from compose_sim.core.verdict.verdict import VerdictWord

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedService:
    """A service or dashboard that is reachable from this machine."""

    name: Annotated[str, "The name of the service"]
    port: Annotated[int, "The port on 127.0.0.1 of this machine"]
    url: Annotated[str, "The link, without the token"]
    tunnel: Annotated[str, "The ssh command that makes the same link work on another machine"]


def link(port: PlannedPort, *, token: str) -> str:
    """Return the link to a service; without a token, the part of the link that carries it is left out."""
    path = port.path if token else port.path.partition("?token={token}")[0]
    return f"{port.scheme}://{_LOOPBACK}:{port.host_port}{path.format(token=token)}"


def login(port: PlannedPort, *, token: str) -> str:
    """Return what to type into the login form of a service; "" if it has none."""
    return port.login.format(token=token) if token else ""


def tunnel(port: PlannedPort, *, user: str, host: str) -> str:
    """Return the command that makes the same link work on another machine."""
    return f"ssh -N -L {port.host_port}:{_LOOPBACK}:{port.host_port} {user}@{host}"


def published_services(plan: Plan, *, host: str) -> tuple[PublishedService, ...]:
    """Return the services that a run publishes. No value is secret."""
    return tuple(
        PublishedService(
            name=port.name,
            port=port.host_port,
            url=link(port, token=""),
            tunnel=tunnel(port, user=plan.login, host=host),
        )
        for port in plan.published
    )


SCHEMA_VERSION = 1
CheckStatus = Literal["passed", "failed", "warned", "not-applicable"]
TestedRange = Literal["tested", "older", "newer"]
ExpectationStatus = Literal["passed", "failed", "inconclusive"]
MistakeStatus = Literal["found", "missed", "not-planted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's code."""

    file: Annotated[str, "The path as the ranks saw it"]
    line: Annotated[int | None, "Counted from 1"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A line that is often wrong in distributed scripts, found in the source before the run; never a failure."""

    place: Annotated[Place, "The line to look at"]
    text: Annotated[str, "Why"]

    def __str__(self) -> str:
        return f"{self.place.file}, line {self.place.line}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a run did not pass: the first failure, from which the others followed."""

    node: Annotated[str | None, "The node on which it happened"] = None
    rank: Annotated[int | None, "The rank to which it happened"] = None
    kind: Annotated[
        str,
        "exception, gap (composesim does not support this torch), exit, signal, oom, teardown, hang, timeout, start, engine, "
        "check (a check failed), "
        "coverage (too little could be judged) or expectation (an expectation of a scenario was not met)",
    ]
    message: Annotated[str, "What happened; the first line says it in short"]
    place: Annotated[Place | None, "The innermost line of the user's code, if it is known"] = None
    traceback: Annotated[
        str | None, "The evidence: a traceback, the stacks of all ranks, or the last lines of output"
    ] = None

    @property
    def first_line(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    @property
    def text(self) -> str:
        """The message and the evidence."""
        return f"{self.message}\n{self.traceback or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node that took part in the run."""

    name: Annotated[str, "node-0, node-1, …"]
    ranks: Annotated[tuple[int, ...], "The ranks planned for this node"] = ()
    gpus: Annotated[tuple[str, ...], "UUIDs of the GPUs of this machine that it was given"] = ()
    exit_code: Annotated[int | None, "Null if the node was not seen to end"] = None
    attempts: Annotated[int, "How often the node was started"] = 0
    steps: Annotated[int, "Optimizer steps of its fastest rank, in all rounds together"] = 0
    cpu_seconds: Annotated[float | None, "CPU time used"] = None
    peak_memory_bytes: Annotated[int | None, "Largest sample of memory in use"] = None
    peak_gpu_memory_bytes: Annotated[int | None, "Largest sample of memory in use on its GPUs, by all their users"] = (
        None
    )
    received_bytes: Annotated[int | None, "Bytes received from the network"] = None
    sent_bytes: Annotated[int | None, "Bytes sent to the network"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """When the run started, and seconds from then to each milestone; null for a milestone that was not reached."""

    started_at: Annotated[float | None, "When the run started, in Unix seconds"] = None
    create_s: Annotated[float | None, "The first node is up"] = None
    rendezvous_s: Annotated[float | None, "All nodes have joined the first round"] = None
    ready_s: Annotated[
        float | None, "The framework has reported that all nodes are ready, if one program drives them"
    ] = None
    first_step_s: Annotated[float | None, "The first step of any rank"] = None
    total_s: Annotated[float | None, "The last event"] = None
    output_s: Annotated[float | None, "How much longer it took to show the output, if that was long"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found."""

    id: Annotated[str, "The name of the check, as in `composesim check --explain ID`"]
    status: Annotated[CheckStatus, "A warning may be intentional; a check that lacks evidence is not applicable"]
    detail: Annotated[str, "The evidence on one line, or why the check does not apply"]
    fix: Annotated[str | None, "What to change"] = None
    place: Annotated[Place | None, "The line to look at"] = None
    ranks: Annotated[tuple[int, ...], "The ranks concerned"] = ()
    follows: Annotated[str | None, "The failed check of which this is a likely consequence; null for a cause"] = None

    @property
    def is_problem(self) -> bool:
        """Whether the check failed or warned."""
        return self.status in ("failed", "warned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What the checks of a run could not compare, and why; null for what they compared."""

    replicas: Annotated[str | None, "Why replicas of the model were not compared"] = None
    gradients: Annotated[str | None, "Why gradients were not compared"] = None
    samples: Annotated[str | None, "Why the ranks' samples were not compared"] = None

    @property
    def missing(self) -> dict[str, str]:
        """The reasons, by what was not compared."""
        found = {"replicas": self.replicas, "gradients": self.gradients, "samples": self.samples}
        return {subject: reason for subject, reason in found.items() if reason}

    @property
    def text(self) -> str:
        """`gradients not judged: no optimizer stepped`: what was not compared, by reason; "" if all was."""
        by_reason: dict[str, list[str]] = {}
        for subject, reason in self.missing.items():
            by_reason.setdefault(reason, []).append(subject)
        return "; ".join(f"{' and '.join(subjects)} not judged: {reason}" for reason, subjects in by_reason.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MistakeReport:
    """A known mistake that `check --self-test` planted into the script, and whether the checks found it."""

    id: Annotated[str, "not-reduced, other-rate, …"]
    text: Annotated[str, "What the script then does, in words"]
    status: Annotated[MistakeStatus, "not-planted: the script has nothing that the mistake could change"]
    checks: Annotated[tuple[str, ...], "The checks that failed or warned, unlike without the mistake"] = ()
    why: Annotated[str, "Why it was not found, or could not be planted"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """One fault that was injected, and the outcome; null for what did not happen."""

    id: Annotated[str, "fault-1, fault-2, …, in the order of injection"]
    kind: Annotated[str, "A kind of `composesim fault list`"]
    nodes: Annotated[tuple[str, ...], "The nodes that it hit"] = ()
    rank: Annotated[int | None, "The rank that it hit, if it hit a single one"] = None
    text: Annotated[str, "What it did, in words"] = ""
    for_s: Annotated[float | None, "Seconds after which it was due to heal"] = None
    begun_s: Annotated[float | None, "Seconds from the start of the run to the injection"] = None
    healed_s: Annotated[float | None, "Seconds from the start of the run until it was healed"] = None
    recovered_s: Annotated[float | None, "Seconds from the injection to the first new step"] = None
    steps_lost: Annotated[int | None, "Steps that were repeated because of it, as far as metric lines show"] = None
    back_s: Annotated[
        float | None, "Seconds from the injection to the round in which all of its nodes took part again"
    ] = None
    checkpoint: Annotated[
        str | None, "For `preempt`: the last file that torch.save completed, or that was renamed, after SIGTERM"
    ] = None
    checkpoint_s: Annotated[float | None, "Seconds from the injection until that file was complete"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """One round of the rendezvous."""

    generation: Annotated[int, "Counted from 0"]
    world_size: Annotated[int, "Number of ranks"]
    nodes: Annotated[tuple[str, ...], "The nodes that took part"] = ()
    began_s: Annotated[float | None, "Seconds since the start of the run"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """One loss after which training continued."""

    fault: Annotated[str | None, "The id of the fault; null if the loss was not injected"] = None
    cause: Annotated[str, "What was lost, in words"] = ""
    seconds: Annotated[float, "From the loss to the first new step"]
    world_size: Annotated[int, "Number of ranks that continued"]
    nodes: Annotated[tuple[str, ...], "The nodes that continued"] = ()
    steps_lost: Annotated[
        int | None, "Steps that were repeated, as far as metric lines show; null if ranks print none"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """The program that drove all nodes, for recipes that have one."""

    exit_code: Annotated[int | None, "Negative: the signal that ended it"] = None
    step: Annotated[int | None, "The step of its last metric line"] = None
    facts: Annotated[Mapping[str, Any], "What the framework reported about its nodes once they were ready"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationResult:
    """One expectation of a scenario, judged."""

    id: Annotated[str, "The key of the expectation in the scenario; `run` and `steps` are implied by every scenario"]
    wanted: Annotated[str, "The expected value"]
    status: Annotated[ExpectationStatus, "Inconclusive if it could not be evaluated"]
    detail: Annotated[str, "What was seen"]
    measured: Annotated[Any, "The measured value, of a type that depends on the expectation"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStepReport:
    """One step of a scenario."""

    step: Annotated[int, "Its number in the scenario, counted from 1"]
    times: Annotated[int, "How often it was played"]
    refused: Annotated[str, "Why the run refused it; empty if it did not"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioReport:
    """The scenario that was played, and how the run ended apart from its expectations."""

    name: Annotated[str, "The name of the scenario"]
    seed: Annotated[int, "The seed of its random choices"]
    steps: Annotated[tuple[ScenarioStepReport, ...], "The outcome of each step"] = ()
    run_verdict: Annotated[VerdictWord, "The verdict on the run itself"]
    run_exit_code: Annotated[int, "The exit code that `up` would have had"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodTimeline:
    """What the time from the first reduction to the last went into; the three shares are means over the ranks and add up to 1."""

    file: Annotated[str, "Where the timeline lies, relative to the run's folder"]
    seconds: Annotated[float, "From the first reduction to the last"]
    compute: Annotated[float, "Share of time spent computing"]
    all_reduce: Annotated[float, "Share of time spent reducing"]
    idle: Annotated[float, "Share of time spent waiting for other ranks"]
    idle_by_rank: Annotated[tuple[float, ...], "The idle share of each rank"]

    @property
    def summary(self) -> str:
        """`12.3 s: compute 61 %, all-reduce 27 %, idle 12 %; …`: the values on one line."""
        parts = (("compute", self.compute), ("all-reduce", self.all_reduce), ("idle", self.idle))
        shares = ", ".join(f"{name} {share:.0%}".replace("%", " %") for name, share in parts)
        least, most = min(self.idle_by_rank), max(self.idle_by_rank)
        slowest = f"; the others wait for rank {self.idle_by_rank.index(least)}" if most - least > 0.1 else ""
        return f"{format_seconds(self.seconds)}: {shares}{slowest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What composesim knows about a run that is over. All values are facts of the run; there is nothing secret among them."""

    schema_version: Annotated[int, "Fields are added within a version; their meaning never changes"] = SCHEMA_VERSION
    run: Annotated[str, "The name of the run"]
    engine: Annotated[str, "docker or local"]
    image: Annotated[str, "The image of the nodes; empty on the local engine"] = ""
    recipe: Annotated[str, "ddp, horovod, ray, …"] = ""
    verdict: Annotated[VerdictWord, "How the run ended"]
    exit_code: Annotated[int, "The exit code of `up`, `play` and `wait`"]
    cause: Annotated[Cause | None, "Why the run did not pass; null if it passed"] = None
    world_size: Annotated[int, "Number of ranks that were planned"]
    nodes: Annotated[tuple[NodeReport, ...], "The nodes that took part"] = ()
    timings: Annotated[Timings, "Seconds from the start to each milestone"] = Timings()
    checks: Annotated[tuple[CheckResult, ...], "The results of the checks"] = ()
    coverage: Annotated[Coverage | None, "What the checks could not compare; null without `check`"] = None
    mistakes: Annotated[tuple[MistakeReport, ...], "Mistakes that `check --self-test` planted"] = ()
    hints: Annotated[tuple[Hint, ...], "Lines of the script that are often wrong; never failures"] = ()
    faults: Annotated[tuple[FaultReport, ...], "Injected faults, in order"] = ()
    rounds: Annotated[tuple[RoundReport, ...], "Rounds of the rendezvous, in order"] = ()
    recoveries: Annotated[tuple[RecoveryReport, ...], "Losses after which training continued, in order"] = ()
    links: Annotated[tuple[str, ...], "Shaping of links at the end, in the syntax of `--link`"] = ()
    elastic: Annotated[tuple[int, int] | None, "Fewest and most nodes of an elastic run"] = None
    metrics: Annotated[Mapping[str, Any], "The last value of each metric that any rank printed"] = field(
        default_factory=dict
    )
    bottleneck: Annotated[Bottleneck | None, "What limited ten or more seconds of training; null if nothing did"] = None
    rank_times: Annotated[tuple[RankTimes, ...], "What the recorded steps of each rank add up to"] = ()
    restarts: Annotated[
        int, "Failures after which a new round began, except those that were injected under `--elastic`"
    ] = 0
    notes: Annotated[tuple[str, ...], "What else to know about the run, such as that the clock was set"] = ()
    driver: Annotated[DriverReport | None, "The program that drove all nodes; null if each rank ran a script"] = None
    timeline: Annotated[HorovodTimeline | None, "What Horovod's timeline shows; null without `--timeline`"] = None
    published: Annotated[tuple[PublishedService, ...], "Services that were reachable from this machine"] = ()
    program: Annotated[str, "The script, module or command, with its arguments"] = ""
    backend: Annotated[str, "The backend of torch.distributed"] = ""
    launcher: Annotated[str, "How ranks were started"] = ""
    versions: Annotated[
        Mapping[str, Any],
        "Of torch, cuda, cudnn, nccl, python and other frameworks in the nodes; host, cpus, memory_bytes, engine, driver and "
        "image_digest of this machine",
    ] = field(default_factory=dict)
    torch_range: Annotated[
        TestedRange | None, "Whether torch is in the tested range of versions; null if its version is not known"
    ] = None
    choices: Annotated[tuple[Choice, ...], "What composesim chose because no option said otherwise"] = ()
    expectations: Annotated[
        tuple[ExpectationResult, ...], "Judged expectations of a scenario; they decide the verdict"
    ] = ()
    scenario: Annotated[ScenarioReport | None, "The scenario, of a run of `composesim play`"] = None

    @property
    def run_failed(self) -> bool:
        """Whether the run itself did not pass, apart from checks and expectations."""
        by_judges = self.cause is not None and self.cause.kind in ("check", "coverage", "expectation")
        return self.verdict != "passed" and not by_judges

    @property
    def needs_hints(self) -> bool:
        """Whether the source may say more than the cause: a rank ended without an exception of its own, or ranks wait."""
        if self.cause is None or not self.run_failed:
            return False
        silent = self.cause.kind in ("exit", "signal", "hang", "timeout")
        return silent or is_consequence(self.cause.message) or "gloo" in self.cause.message

    @property
    def check_exit_code(self) -> int:
        """The exit code of `check`: that of the run if it did not pass, else 1 if a check failed."""
        return self.exit_code or int(any(result.status == "failed" for result in self.checks))

    @classmethod
    def from_dict(cls, values: Any) -> Report:
        """Return the report that JSON values describe; raise ValueError if they do not describe one."""
        return from_json(cls, values)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values: dict[str, Any] = to_json(self)
        return values
