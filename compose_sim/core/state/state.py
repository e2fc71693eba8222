"""Where does the cluster stand? The values that the live view, the verdict and the report read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.load import NO_LOAD, Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that went wrong on a rank or a node, as its event told it."""

    t: float
    kind: str  # exception, exit, signal, oom, teardown, start, engine, hang
    node: str | None = None
    rank: int | None = None
    message: str = ""
    traceback: str = ""
    generation: int | None = None  # the round in which it happened, where that is known
    injected: bool = False  # the master saw that somebody wished it

    @property
    def place(self) -> str:
        """`rank 2 on node-1`, `node-1`, or nothing where it happened nowhere in particular."""
        return " on ".join(
            part for part in (f"rank {self.rank}" if self.rank is not None else "", self.node or "") if part
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a node uses, between its last two samples. Bytes, and CPUs as a fraction of one."""

    t: float
    cpu_seconds: float
    cpus: float | None = None
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    memory_limit_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    gpu_use: float | None = None  # 0 to 1, of its GPUs as wholes
    gpu_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank in its present round."""

    rank: int
    node: str
    generation: int | None = None  # the round; None before the first
    phase: str = "starting"  # starting, init, running, ended, exited
    step: int | None = None
    metric: Mapping[str, Any] = field(default_factory=dict)
    exception: Failure | None = None
    script_exit_code: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    exited_at: float | None = None
    stopped: bool = False  # it was told to end, because of others: how it ended then says nothing of it
    joined_group: bool = False  # it called init_process_group
    in_init: bool = False
    init_world_size: int | None = None  # what the script asked for, where it did
    stall: Mapping[str, Any] | None = None  # where it stands, while it does not move (standing.py)
    stalled_since: float = 0.0
    at_breakpoint: bool = False

    @property
    def has_left(self) -> bool:
        """Whether it ended well, and of its own."""
        return self.phase == "exited" and self.exit_code == 0 and not self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The program on the master that drives all nodes, where one does."""

    phase: str = "starting"  # starting, running (all nodes are there), ended
    ready_at: float | None = None  # when the framework said that all nodes are there
    facts: Mapping[str, Any] = field(default_factory=dict)  # what it said of them
    step: int | None = None
    exception: Failure | None = None
    exit_code: int | None = None  # negative: the signal that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node: its phase as a person would name it, and what its agent reported."""

    name: str
    nproc: int = 1
    phase: str = "creating"  # creating, rendezvous, starting, init, running, ended, exited, lost
    attempts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    gone_at: float | None = None  # since when it is lost or exited
    steps: int = 0  # the furthest of its ranks, in the last round that it took part in
    usage: Usage | None = None
    load: Load = NO_LOAD  # while its ranks trained

    @property
    def is_gone(self) -> bool:
        """Whether it takes part no more: it ended, or the master no longer hears it."""
        return self.phase in ("exited", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One generation: who took part, and how far its ranks came. Steps are those of metric lines, which outlive a restart."""

    generation: int
    world_size: int
    nodes: tuple[str, ...]
    began_at: float
    first_step_at: float | None = None  # when any rank made its first step, by its optimizer or by a metric line
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The training went on after a loss: the first new step of a later round."""

    fault: str | None  # its id; None for a loss that nobody injected
    cause: str
    seconds: float  # from the loss to that step
    world_size: int
    steps_lost: int | None = None  # None where no rank prints metric lines
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The whole run at one moment."""

    nodes: Mapping[str, NodeState]
    ranks: Mapping[int, RankState]
    driver: DriverState | None = None
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # what an exit code of the framework's programs means
    failures: tuple[Failure, ...] = ()
    started_at: float | None = None
    host: Mapping[str, Any] = field(default_factory=dict)  # this machine and its engine, as the report names them
    first_node_at: float | None = None
    rendezvous_at: float | None = None  # of the first round
    round_at: float = 0.0  # when the present round began
    first_step_at: float | None = None
    last_t: float = 0.0
    generation: int | None = None
    restarts: int = 0
    master_exit_code: int | None = None
    master_stopped_at: float | None = None
    outcome: bool | None = None  # the master's word: whether the run passed
    outcome_at: float = 0.0
    ended_because: str = ""  # the master's word on a run that failed
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(
        default_factory=dict
    )  # last value of every key that rank 0 (or any rank) printed
    stopping: str = ""  # why composesim is stopping the run: interrupted, timeout, hang, failure, engine
    stop_cause: Failure | None = None  # what was the matter at that moment
    hang: Failure | None = None  # nothing moves: told once, and forgotten when something does
    elastic: bool = False  # nodes may leave and come back
    least_nodes: int = 1  # with fewer there is no round
    wanted: tuple[str, ...] = ()  # nodes that are to take part now
    wanted_at: float = 0.0  # when that was last changed
    links: tuple[str, ...] = ()  # shapes as `--link` takes them
    rounds: tuple[Round, ...] = ()
    faults: Mapping[str, FaultRecord] = field(default_factory=dict)  # by id, in the order in which they were injected
    recoveries: tuple[Recovery, ...] = ()
    metric_interval: int | None = None  # global steps between two metric lines of a rank

    @property
    def absent(self) -> frozenset[str]:
        """Nodes that take no part, as somebody wished: scaled away or not started yet, or gone by a fault that lasts."""
        away = {name for name in self.nodes if name not in self.wanted}
        for fault in self.faults.values():
            if fault.lasts and fault.healed_at is None:
                away |= {name for name in fault.loses if name in self.nodes and self.nodes[name].is_gone}
        return frozenset(away)

    def with_node(self, node: NodeState) -> ClusterState:
        """The state with this node in the place of the one of its name."""
        return replace(self, nodes={**self.nodes, node.name: node})

    def with_rank(self, rank: RankState) -> ClusterState:
        """The state with this rank in the place of the one of its number."""
        return replace(self, ranks={**self.ranks, rank.rank: rank})


def initial_state(plan: Plan) -> ClusterState:
    """The state before anything happened. Ranks are those of the nodes that begin."""
    nodes = {node.name: NodeState(name=node.name, nproc=node.nproc) for node in plan.nodes}
    ranks = {rank: RankState(rank=rank, node=node.name) for node in plan.initial_nodes for rank in node.ranks}
    return ClusterState(
        nodes=nodes,
        ranks=ranks,
        driver=DriverState() if plan.is_driven else None,
        exit_codes=plan.exit_codes,
        # Frameworks with a driver go on with the nodes that are left; whether they can is theirs to say.
        elastic=plan.elastic is not None or plan.is_driven,
        least_nodes=plan.elastic[0] if plan.elastic else 1 if plan.is_driven else len(plan.nodes),
        wanted=tuple(node.name for node in plan.initial_nodes),
        links=plan.links,
    )
