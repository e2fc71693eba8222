"""Decide whether a run is over or must be stopped, whether it passed, and what went wrong first if it did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fault_attribution import active_faults, is_due_back, is_excused, is_promised, last_hope
from compose_sim.core.state.state import GAP, ClusterState, Failure, NodeState
from compose_sim.core.text import format_count
from compose_sim.core.verdict.hang import find_hang, is_present
from compose_sim.core.verdict.root_cause import blame_fault, first_cause, master_failure
from compose_sim.core.verdict.time_limit import is_over_time, time_limit_reached

VerdictWord = Literal["passed", "failed", "inconclusive", "hung", "timeout", "interrupted"]
EXIT_CODES: dict[VerdictWord, int] = {
    "passed": 0,
    "failed": 1,
    "inconclusive": 3,
    "hung": 124,
    "timeout": 124,
    "interrupted": 130,
}
_STOPPED: dict[str, VerdictWord] = {
    "interrupted": "interrupted",
    "timeout": "timeout",
    "hang": "hung",
    "engine": "inconclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a run ended: the word, the exit code of `up`, and the first failure."""

    word: VerdictWord
    cause: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The exit status of `up` and `wait`."""
        return EXIT_CODES[self.word]


def is_over(state: ClusterState) -> bool:
    """
    Return whether every node that takes part has ended for good.

    While the master lives, a node that is expected back has not: it would begin a new round. Once the master has ended the run,
    nothing waits for nodes that an elastic run continued without, or that a fault holds.
    """
    names = _counted(state)
    if not all(state.nodes[name].phase == "exited" for name in names):
        return False
    nothing_to_join = state.stopping or state.outcome is not None or state.master_stopped_at is not None
    return bool(nothing_to_join) or not any(is_due_back(state, name) for name in names)


def judge(state: ClusterState, outputs: Mapping[str, str] | None = None) -> Verdict:
    """Return the verdict on a run that is over. `outputs` holds the last lines of nodes that started no rank."""
    word = _STOPPED.get(state.stopping)
    if word:
        return Verdict(word=word, cause=state.stop_cause)
    if state.stopping == "failure" and (cause := state.stop_cause):
        said = (outputs or {}).get(cause.node or "", "")
        return Verdict(word="failed", cause=replace(cause, traceback=cause.traceback or said))
    counted = [state.nodes[name] for name in _counted(state)]
    if is_over(state) and all(node.exit_code == 0 for node in counted) and not (state.elastic and not state.outcome):
        return Verdict(word="passed")
    cause = blame_fault(state, first_cause(state, outputs))
    if cause is None and not is_over(state):
        unknown = ", ".join(node.name for node in counted if node.phase != "exited")
        killed = "composesim was killed before it saw how" if not state.stopping else "it is not known how"
        message = f"{killed} {unknown} ended"
        return Verdict(word="inconclusive", cause=Failure(t=state.last_t, kind="engine", message=message))
    is_script = cause is None or cause.kind != GAP  # else it is not known what the script would have done
    return Verdict(word="failed" if is_script else "inconclusive", cause=cause)


def _counted(state: ClusterState) -> tuple[str, ...]:
    """Return the nodes whose end the run waits for, and whose exit codes decide the verdict."""
    names = tuple(name for name in state.wanted if name in state.nodes)
    if state.driver and state.outcome is not None:  # the driver continued without lost nodes, or failed because of them
        return tuple(name for name in names if not state.nodes[name].is_gone or state.nodes[name].exit_code == 0)
    if not state.elastic or state.outcome is None or not state.rounds:
        return names
    last = state.rounds[-1]
    away = {name for fault in active_faults(state) for name in fault.loses}
    losses = (each for each in state.failures if each.rank is None and each.generation == last.generation)
    away |= {each.node for each in losses if each.node and is_excused(state, each)}
    return tuple(name for name in names if name in last.nodes and name not in away)


NODES_MUST_COME_WITHIN_S = 60.0  # the user may be about to heal a fault
_PEERS_MUST_END_WITHIN_S = 5.0
# After the master and each other: a busy machine may take long to end many nodes.
_DONE_NODES_END_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why composesim stops a run, with the cause if that is not a failure of the run itself."""

    reason: str  # timeout, hang, failure, engine, interrupted
    cause: Failure | None = None


def reason_to_stop(state: ClusterState, plan: Plan, *, now: float) -> StopReason | None:
    """Return why the run must be stopped now; None if it may continue."""
    if is_over_time(state, plan, now=now):
        return StopReason(reason="timeout", cause=time_limit_reached(state, plan, now=now))
    deadlock = find_deadlock(state)
    if deadlock:
        return StopReason(reason="hang", cause=deadlock)
    hang = find_hang(state, plan, now=now)
    limit = plan.hang_limit_s(is_final=hang.is_final) if hang else None
    if hang and limit and now - hang.t > limit:
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
