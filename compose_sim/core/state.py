"""Where does the cluster stand? The values that the live view, the verdict and the report read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compose_sim.core.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One thing that went wrong on a rank or a node, as its event told it."""

    t: float
    kind: str  # exception, exit, signal, oom, teardown, start, engine, hang
    node: str | None = None
    rank: int | None = None
    message: str = ""
    traceback: str = ""

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
    joined_group: bool = False  # it called init_process_group
    in_init: bool = False
    init_world_size: int | None = None  # what the script asked for, where it did
    stall: Mapping[str, Any] | None = None  # where it stands, while it does not move (standing.py)
    stalled_since: float = 0.0
    at_breakpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node: its phase as a person would name it, and what its agent reported."""

    name: str
    phase: str = "creating"  # creating, rendezvous, starting, init, running, ended, exited, lost
    attempts: int = 0
    exit_code: int | None = None
    oom_killed: bool = False
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The whole run at one moment."""

    nodes: Mapping[str, NodeState]
    ranks: Mapping[int, RankState]
    failures: tuple[Failure, ...] = ()
    started_at: float | None = None
    first_node_at: float | None = None
    rendezvous_at: float | None = None  # of the first round
    round_at: float = 0.0  # when the present round began
    first_step_at: float | None = None
    last_t: float = 0.0
    generation: int | None = None
    restarts: int = 0
    master_exit_code: int | None = None
    master_stopped_at: float | None = None
    ended_because: str = ""  # the master's word on a run that failed
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(
        default_factory=dict
    )  # last value of every key that rank 0 (or any rank) printed
    stopping: str = ""  # why composesim is stopping the run: interrupted, timeout, hang, failure, engine
    stop_cause: Failure | None = None  # what was the matter at that moment
    hang: Failure | None = None  # nothing moves: told once, and forgotten when something does


def initial_state(plan: Plan) -> ClusterState:
    """The state before anything happened."""
    nodes = {node.name: NodeState(name=node.name) for node in plan.nodes}
    ranks = {rank: RankState(rank=rank, node=node.name) for node in plan.nodes for rank in node.ranks}
    return ClusterState(nodes=nodes, ranks=ranks)
