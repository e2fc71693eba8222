"""Decide whether composesim must stop a run: at its timeout, in a deadlock or a hang, or with too few nodes left."""

from __future__ import annotations

from dataclasses import dataclass

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fault_attribution import is_excused, is_promised, last_hope
from compose_sim.core.state.state import ClusterState, Failure, NodeState
from compose_sim.core.units import format_count, format_seconds
from compose_sim.core.verdict.hang import find_hang, is_present
from compose_sim.core.verdict.root_cause import blame_fault, first_cause, master_failure

NODES_MUST_COME_WITHIN_S = 60.0  # the user may be about to heal a fault
_PEERS_MUST_END_WITHIN_S = 5.0
# After the master and each other: a busy machine may take long to end many nodes.
_DONE_NODES_END_WITHIN_S = 30.0
_MOST_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why composesim stops a run, with the cause if that is not a failure of the run itself."""

    reason: str  # timeout, hang, failure, engine, interrupted
    cause: Failure | None = None


def reason_to_stop(state: ClusterState, plan: Plan, *, now: float) -> StopReason | None:
    """Return why the run must be stopped now; None if it may continue."""
    if plan.timeout_s and state.started_at is not None and now - state.started_at > plan.timeout_s:
        message = f"not done after {format_seconds(plan.timeout_s)}: {_phases(state)}"
        return StopReason(reason="timeout", cause=Failure(t=now, kind="timeout", message=message))
    deadlock = find_deadlock(state)
    if deadlock:
        return StopReason(reason="hang", cause=deadlock)
    hang = find_hang(state, plan, now=now)
    if hang and plan.hang_timeout_s and now - hang.t > plan.hang_timeout_s:
        return StopReason(reason="hang", cause=hang)
    return _failed_peers(state, plan, now=now) or _too_few_nodes(state, now=now)


def find_deadlock(state: ClusterState) -> Failure | None:
    """Return a rank that exited with status 0 without joining the group for which others wait: they would wait forever."""
    # A script may create a group smaller than the world; then no rank is missing.
    whole = (None, len(state.ranks))
    ranks = [rank for rank in state.ranks.values() if is_present(rank, state)]
    waiting = [rank.rank for rank in ranks if rank.in_init and rank.init_world_size in whole]
    gone = [rank for rank in ranks if rank.has_left and not rank.joined_group]
    if not (waiting and gone):
        return None
    first = min(gone, key=lambda rank: rank.rank)
    others = ", ".join(str(rank) for rank in sorted(waiting))
    uses_torch = state.versions.get("torch") or not state.versions.get("paddle")
    call = "init_process_group" if uses_torch else "init_parallel_env"
    who = f"rank {others} waits" if len(waiting) == 1 else f"ranks {others} wait"
    message = f"rank {first.rank} exited without calling {call}, where {who} for it"
    return Failure(t=state.last_t, kind="hang", node=first.node, rank=first.rank, message=message)


def missing_nodes(state: ClusterState) -> tuple[NodeState, ...]:
    """Return the nodes that are gone if too few are left for a round, and none if enough are."""
    if state.outcome is not None or state.stopping:
        return ()
    gone = tuple(state.nodes[name] for name in state.wanted if name in state.nodes and state.nodes[name].is_gone)
    is_enough = len(state.wanted) - len(gone) >= min(state.least_nodes, len(state.wanted))
    return () if is_enough else gone


def too_few_nodes_message(state: ClusterState) -> str:
    """Return `1 node left, but a round needs 2`."""
    left = len(state.wanted) - len(missing_nodes(state))
    return f"{format_count(left, 'node')} left, but a round needs {state.least_nodes}"


def _failed_peers(state: ClusterState, plan: Plan, *, now: float) -> StopReason | None:
    """Return a reason if nodes keep running after a failure. The master normally stops them, but may itself be gone."""
    if state.outcome is False and now - state.outcome_at > _PEERS_MUST_END_WITHIN_S:
        return StopReason(reason="failure")
    # An elastic run, or one with restarts left, may begin another round. Injected failures use up no restarts.
    is_last = state.restarts >= plan.max_restarts and not state.elastic
    failures = [failure for failure in state.failures if is_last and failure.t >= state.round_at]
    if plan.max_restarts:
        failures = [failure for failure in failures if not is_excused(state, failure)]
    if failures and now - failures[0].t > _PEERS_MUST_END_WITHIN_S:
        return StopReason(reason="failure")
    if state.master_stopped_at is None:
        return None
    patience, since = _PEERS_MUST_END_WITHIN_S, state.master_stopped_at
    if state.outcome:
        patience, since = _DONE_NODES_END_WITHIN_S, max(since, *(node.gone_at or 0.0 for node in state.nodes.values()))
    if now - since > patience:
        return StopReason(reason="engine", cause=master_failure(state))
    return None


def _too_few_nodes(state: ClusterState, *, now: float) -> StopReason | None:
    """Return a reason if fewer nodes are left than a round needs, and no lost node is expected back."""
    gone = missing_nodes(state)
    since = max((last_hope(state, node.name) for node in gone), default=now)
    somebody_may_help = state.elastic or state.faults  # else nobody has made the node end, and nobody starts it again
    patience = NODES_MUST_COME_WITHIN_S if somebody_may_help else _PEERS_MUST_END_WITHIN_S
    if now - since <= patience or any(is_promised(state, node.name) for node in gone):
        return None
    first = blame_fault(state, first_cause(state))
    why = f": {first.message}" if first else ""
    message = f"{too_few_nodes_message(state)}, and no lost node is expected back{why}"
    cause = Failure(t=now, kind=first.kind if first else "exit", node=first.node if first else None, message=message)
    return StopReason(reason="failure", cause=cause)


def _phases(state: ClusterState) -> str:
    """Return `node-0, node-1: running; node-2: lost`."""
    phases: dict[str, list[str]] = {}
    for node in state.nodes.values():
        phases.setdefault(node.phase, []).append(node.name)
    return "; ".join(
        f"{', '.join(names[:_MOST_NAMES])}{' …' if len(names) > _MOST_NAMES else ''}: {phase}"
        for phase, names in phases.items()
    )
