"""Define the state of a run at one moment, which the live view, the verdict and the report read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.plan.model import Plan, PlannedNode

# A node may write any number of events; whatever grows with them has a limit.
_MAX_METRICS = 1000  # names
_MAX_FAILURES = 1000  # of one node
MAX_ROUNDS = 1000


GAP = "gap"  # the kind of a failure of composesim, with a part of torch that it does not support


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that went wrong on a rank or a node."""

    t: float
    kind: str  # exception, gap, exit, signal, oom, teardown, start, engine, hang
    node: str | None = None
    rank: int | None = None
    message: str = ""
    traceback: str = ""
    generation: int | None = None  # the round in which it happened, if known
    injected: bool = False  # the node was removed on purpose
    is_final: bool = False  # a hang that nothing can end: the ranks wait for each other

    @classmethod
    def of(cls, event: Event, kind: str, message: str, traceback: str = "", **more: Any) -> Failure:
        """Return what went wrong at the time and the place of an event."""
        place = {"node": event.node, "rank": event.rank, "generation": event.generation}
        return cls(t=event.t, kind=kind, message=message, traceback=traceback, **{**place, **more})

    @property
    def place(self) -> str:
        """`rank 2 on node-1`, `node-1`, or "" for a failure of the whole run."""
        return " on ".join(
            part for part in (f"rank {self.rank}" if self.rank is not None else "", self.node or "") if part
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a node uses, from the last two samples; CPUs are a fraction of one."""

    t: float
    cpu_seconds: float
    cpus: float | None = None
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    gpu_use: float | None = None  # 0 to 1, of whole GPUs
    gpu_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank in the current round."""

    rank: int
    node: str
    generation: int | None = None  # the round; None before the first
    phase: str = "starting"  # starting, init, running, ended, exited
    step: int | None = None
    metric: Mapping[str, Any] = field(default_factory=dict)
    exception: Failure | None = None
    script_exit_code: int | None = None
    exit_message: str = ""  # the text of sys.exit("text")
    exit_code: int | None = None
    signal: int | None = None
    exited_at: float | None = None
    stopped: bool = False  # composesim stopped it because of other ranks, so the exit code means nothing
    joined_group: bool = False  # it has called init_process_group
    in_init: bool = False
    init_world_size: int | None = None  # as passed by the script, if it was
    stall: Mapping[str, Any] | None = None  # where the rank is while it makes no progress (stalled_rank.py)
    stalled_since: float = 0.0
    dump: Mapping[str, Any] | None = None  # where the rank was when it was last asked
    dumped_at: float = 0.0
    halted_since: float | None = None  # while it is stopped, by SIGSTOP or a debugger
    at_breakpoint: bool = False

    @property
    def has_left(self) -> bool:
        """Whether it exited with status 0 without being stopped."""
        return self.phase == "exited" and self.exit_code == 0 and not self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The program on the master that drives all nodes, for recipes that have one."""

    phase: str = "starting"  # starting, running (all nodes are there), ended
    ready_at: float | None = None  # when the framework reported that all nodes are there
    facts: Mapping[str, Any] = field(default_factory=dict)  # what it reported about them
    step: int | None = None
    exception: Failure | None = None
    exit_code: int | None = None  # negative: the signal that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node: the phase, and what the agent reported."""

    name: str
    nproc: int = 1
    phase: str = "creating"  # creating, rendezvous, starting, init, running, ended, exited, lost
    attempts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    was_stopped: bool = False  # by composesim, so the exit code explains nothing
    has_memory_limit: bool = False  # requested; the default limit is nearly all memory of the machine
    gone_at: float | None = None  # when it was lost or exited
    steps_in_rounds: Mapping[int | None, int] = field(default_factory=dict)  # of the fastest rank, by generation
    usage: Usage | None = None
    load: Load = NO_LOAD  # while ranks trained

    @property
    def steps(self) -> int:
        """The optimizer steps of the fastest rank, in all rounds together."""
        return sum(self.steps_in_rounds.values())

    @property
    def is_gone(self) -> bool:
        """Whether the node no longer takes part: it exited, or the master lost it."""
        return self.phase in ("exited", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of the rendezvous. Steps are those of metric lines, which continue across restarts."""

    generation: int
    world_size: int
    nodes: tuple[str, ...]
    began_at: float
    first_step_at: float | None = None  # the first step of any rank, seen in an optimizer or in a metric line
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Training continued after a loss, with the first step of a later round."""

    fault: str | None  # the id; None if the loss was not injected
    cause: str
    seconds: float  # from the loss to that step
    world_size: int
    steps_lost: int | None = None  # None if no rank prints metric lines
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The whole run at one moment."""

    nodes: Mapping[str, NodeState]
    ranks: Mapping[int, RankState]
    driver: DriverState | None = None
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # the meaning of the exit codes of a framework
    failures: tuple[Failure, ...] = ()
    started_at: float | None = None
    host: Mapping[str, Any] = field(default_factory=dict)  # this machine and the engine, as the report names them
    first_node_at: float | None = None
    rendezvous_at: float | None = None  # of the first round
    round_at: float = 0.0  # when the current round began
    first_step_at: float | None = None
    last_t: float = 0.0
    is_judged: bool = False
    generation: int | None = None
    restarts: int = 0
    master_exit_code: int | None = None
    master_stopped_at: float | None = None
    outcome: bool | None = None  # whether the run passed, according to the master
    outcome_at: float = 0.0
    ended_because: str = ""  # why the run failed, according to the master
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # the last value of each metric that any rank printed
    stopping: str = ""  # why composesim is stopping the run: interrupted, timeout, hang, failure, engine
    stop_cause: Failure | None = None  # the cause at that moment
    notes: tuple[str, ...] = ()  # what a reader of the report should know about the run
    hang: Failure | None = None  # reported once, and withdrawn when a rank makes progress again
    elastic: bool = False  # nodes may leave and come back
    least_nodes: int = 1  # a round needs at least this many
    wanted: tuple[str, ...] = ()  # the nodes that should take part now
    wanted_at: float = 0.0  # when `wanted` last changed
    links: tuple[str, ...] = ()  # in the syntax of `--link`
    rounds: tuple[Round, ...] = ()
    faults: Mapping[str, FaultRecord] = field(default_factory=dict)  # by id, in the order in which they were injected
    recoveries: tuple[Recovery, ...] = ()
    halts: tuple[tuple[int, float, float], ...] = ()  # ranks that were stopped, from when to when; the last of them
    metric_interval: int | None = None  # steps between two metric lines of a rank

    def with_metrics(self, *lines: Mapping[str, Any]) -> ClusterState:
        """Return the state with the metrics of these lines. A line that would make it more than _MAX_METRICS names is ignored."""
        metrics = dict(self.metrics)
        for values in lines:
            if len(metrics.keys() | values.keys()) <= _MAX_METRICS:
                metrics.update(values)
        return replace(self, metrics=metrics)

    def with_failure(self, failure: Failure) -> ClusterState:
        """Return the state with one more failure; the first ones of each node are kept."""
        if sum(each.node == failure.node for each in self.failures) >= _MAX_FAILURES:
            return self
        return replace(self, failures=(*self.failures, failure))

    def with_node(self, node: NodeState) -> ClusterState:
        """Return the state with this node in place of the one of the same name."""
        return replace(self, nodes={**self.nodes, node.name: node})

    def with_rank(self, rank: RankState) -> ClusterState:
        """Return the state with this rank in place of the one of the same number."""
        return replace(self, ranks={**self.ranks, rank.rank: rank})


def _node_state(node: PlannedNode) -> NodeState:
    return NodeState(name=node.name, nproc=node.nproc, has_memory_limit=node.memory_bytes is not None)


def initial_state(plan: Plan) -> ClusterState:
    """Return the state before anything has happened, with the ranks of the nodes that the run starts with."""
    nodes = {node.name: _node_state(node) for node in plan.nodes}
    ranks = {rank: RankState(rank=rank, node=node.name) for node in plan.initial_nodes for rank in node.ranks}
    return ClusterState(
        nodes=nodes,
        ranks=ranks,
        driver=DriverState() if plan.is_driven else None,
        exit_codes=plan.exit_codes,
        # A framework with a driver decides for itself whether it can continue with the nodes that are left.
        elastic=plan.elastic is not None or plan.is_driven,
        least_nodes=plan.elastic[0] if plan.elastic else 1 if plan.is_driven else len(plan.nodes),
        wanted=tuple(node.name for node in plan.initial_nodes),
        links=plan.links,
    )


def is_on(state: ClusterState, node: str, rank: int, generation: int | None) -> bool:
    """
    Return whether a rank of a round lives on a node; in the round of now if `generation` is None.

    False for a round that the master has not reported. A framework with a driver numbers its ranks itself: there, always True.
    """
    if state.driver:
        return True
    wanted = state.generation if generation is None else generation
    round_ = next((each for each in state.rounds if each.generation == wanted), None)
    if (
        round_ is None
    ):  # events of the master come first, so only the plan is known, or nothing has happened in this round
        planned = state.ranks.get(rank)
        return not state.rounds and not wanted and planned is not None and planned.node == node
    first = 0
    for each in round_.nodes:
        size = state.nodes[each].nproc if each in state.nodes else 0
        if each == node:
            return first <= rank < first + size
        first += size
    return False


def speaks_for_another(state: ClusterState, event: Event) -> bool:
    """Return whether a node reports about a rank of another node, or one of a round that the master has not reported."""
    if event.rank is None or event.node is None or event.node not in state.nodes:
        return False
    return not is_on(state, event.node, event.rank, event.generation)
