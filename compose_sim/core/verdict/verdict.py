"""Was the run good, and if not, what went wrong first? And when is there nothing left to wait for?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fault_attribution import (
    active_faults,
    fault_of,
    is_due_back,
    is_excused,
    is_promised,
    last_hope,
)
from compose_sim.core.state.state import ClusterState, Failure, NodeState
from compose_sim.core.units import format_seconds
from compose_sim.core.verdict.hang import find_hang, is_present

EXIT_CODES = {"passed": 0, "failed": 1, "inconclusive": 3, "hung": 124, "timeout": 124, "interrupted": 130}
_STOPPED = {"interrupted": "interrupted", "timeout": "timeout", "hang": "hung", "engine": "inconclusive"}
PEERS_MUST_END_WITHIN_S = 5.0
NODES_MUST_COME_WITHIN_S = 60.0  # a person may be about to heal what they broke
_CONSEQUENCE_WITHIN_S = 5.0

# What a rank says when another one has gone: never the cause while something else failed about the same time.
_CONSEQUENCE = re.compile(
    r"closed by peer|reset by peer|[Bb]roken pipe|[Cc]onnection (?:was |has been )?(?:closed|refused|reset|aborted)"
    r"|remote process exited|peer.*(?:exited|closed)|DistNetworkError|DistBackendError|recvValue failed|socket.*(?:closed|timed out)"
    r"|was lost|Horovod has been shut down"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a run ended: the word, the exit code of `up`, and the first failure."""

    word: str
    cause: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The exit status that `up` and `wait` end with."""
        return EXIT_CODES[self.word]


def is_consequence(message: str) -> bool:
    """Whether a rank says this because another one has gone."""
    return bool(_CONSEQUENCE.search(message))


def is_over(state: ClusterState) -> bool:
    """
    Whether every node that takes part has ended for good.

    A node that is due back has not, while the master lives: it would begin a new round. Once the master has said how the run ended,
    nobody waits for nodes that an elastic run went on without, or that a fault holds.
    """
    names = _counted(state)
    if not all(state.nodes[name].phase == "exited" for name in names):
        return False
    nothing_to_join = state.stopping or state.outcome is not None or state.master_stopped_at is not None
    return bool(nothing_to_join) or not any(is_due_back(state, name) for name in names)


def _counted(state: ClusterState) -> tuple[str, ...]:
    """The nodes whose end is waited for, and whose exit codes are judged."""
    names = tuple(name for name in state.wanted if name in state.nodes)
    if state.driver and state.outcome is not None:  # it went on without those that are gone, or failed of it
        return tuple(name for name in names if not state.nodes[name].is_gone or state.nodes[name].exit_code == 0)
    if not state.elastic or state.outcome is None or not state.rounds:
        return names
    last = state.rounds[-1]
    away = {name for fault in active_faults(state) for name in fault.loses}
    losses = (each for each in state.failures if each.rank is None and each.generation == last.generation)
    away |= {each.node for each in losses if each.node and is_excused(state, each)}
    return tuple(name for name in names if name in last.nodes and name not in away)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why composesim ends a run itself, with what was the matter where that is not a failure of its own."""

    reason: str  # timeout, hang, failure
    cause: Failure | None = None


def reason_to_stop(state: ClusterState, plan: Plan, *, now: float) -> StopReason | None:
    """Why the run should be stopped now; None while it may go on."""
    if plan.timeout_s and state.started_at is not None and now - state.started_at > plan.timeout_s:
        message = f"not done after {format_seconds(plan.timeout_s)}: {_where_it_stands(state)}"
        return StopReason(reason="timeout", cause=Failure(t=now, kind="timeout", message=message))
    deadlock = find_deadlock(state)
    if deadlock:
        return StopReason(reason="hang", cause=deadlock)
    hang = find_hang(state, plan, now=now)
    if hang and plan.hang_timeout_s and now - hang.t > plan.hang_timeout_s:
        return StopReason(reason="hang", cause=hang)
    return _deaf_nodes(state, plan, now=now) or _too_few_nodes(state, now=now)


def _deaf_nodes(state: ClusterState, plan: Plan, *, now: float) -> StopReason | None:
    """Nodes stop one another through the master; this is for those that do not listen, and for the master's own end."""
    if state.outcome is False and now - state.outcome_at > PEERS_MUST_END_WITHIN_S:
        return StopReason(reason="failure")
    # Under --elastic, and with restarts left, the master may begin another round; what was injected spends none of them.
    is_last = state.restarts >= plan.max_restarts and not state.elastic
    failures = [failure for failure in state.failures if is_last and failure.t >= state.round_at]
    if plan.max_restarts:
        failures = [failure for failure in failures if not is_excused(state, failure)]
    if failures and now - failures[0].t > PEERS_MUST_END_WITHIN_S:
        return StopReason(reason="failure")
    if state.master_stopped_at is not None and now - state.master_stopped_at > PEERS_MUST_END_WITHIN_S:
        return StopReason(reason="engine", cause=_masters_failure(state))
    return None


def missing_nodes(state: ClusterState) -> tuple[NodeState, ...]:
    """The nodes that are gone, where so few are left that there can be no round; none where there can."""
    if state.outcome is not None or state.stopping:
        return ()
    gone = tuple(state.nodes[name] for name in state.wanted if name in state.nodes and state.nodes[name].is_gone)
    is_enough = len(state.wanted) - len(gone) >= min(state.least_nodes, len(state.wanted))
    return () if is_enough else gone


def missing_words(state: ClusterState) -> str:
    """`1 of 2 nodes that a round needs is left`."""
    left = len(state.wanted) - len(missing_nodes(state))
    return f"{left} of {state.least_nodes} nodes that a round needs {'is' if left == 1 else 'are'} left"


def _too_few_nodes(state: ClusterState, *, now: float) -> StopReason | None:
    """Fewer nodes than a round needs, and none that comes back: the others would wait for ever."""
    gone = missing_nodes(state)
    since = max((last_hope(state, node.name) for node in gone), default=now)
    if now - since <= NODES_MUST_COME_WITHIN_S or any(is_promised(state, node.name) for node in gone):
        return None
    first = _told_cause(state, first_cause(state))
    why = f": {first.message}" if first else ""
    message = f"{missing_words(state)}, and none is due back{why}"
    cause = Failure(t=now, kind=first.kind if first else "exit", node=first.node if first else None, message=message)
    return StopReason(reason="failure", cause=cause)


def find_deadlock(state: ClusterState) -> Failure | None:
    """A rank that ended well without ever joining the group, while others wait for it there: that wait cannot end."""
    # A script may make a smaller group than the world, for which nobody need be missing.
    whole = (None, len(state.ranks))
    ranks = [rank for rank in state.ranks.values() if is_present(rank, state)]
    waiting = [rank.rank for rank in ranks if rank.in_init and rank.init_world_size in whole]
    gone = [rank for rank in ranks if rank.has_left and not rank.joined_group]
    if not (waiting and gone):
        return None
    first = min(gone, key=lambda rank: rank.rank)
    others = ", ".join(str(rank) for rank in sorted(waiting))
    is_torchs = state.versions.get("torch") or not state.versions.get("paddle")
    call = "init_process_group" if is_torchs else "init_parallel_env"
    return Failure(
        t=state.last_t,
        kind="hang",
        node=first.node,
        rank=first.rank,
        message=f"rank {first.rank} ended without calling {call}, in which rank {others} waits for it",
    )


def first_cause(state: ClusterState, outputs: Mapping[str, str] | None = None) -> Failure | None:
    """The failure that the others followed from. `outputs` holds the last lines of nodes that ended before any rank started."""
    known = state.failures
    if state.elastic:  # what was injected cost the run nothing; unless there is nothing else
        known = tuple(failure for failure in known if not is_excused(state, failure)) or known
    failures = [_explain_lost_node(failure, state) for failure in known]
    failures += _silent_nodes(state, failures, outputs or {})
    if not failures:
        return _masters_failure(state)
    failures.sort(key=lambda failure: failure.t)
    causes = [failure for failure in failures if not is_consequence(failure.message)]
    if causes and causes[0].t <= failures[0].t + _CONSEQUENCE_WITHIN_S:
        return causes[0]
    return _early_leaver(state, failures[0]) or failures[0]


def judge(state: ClusterState, outputs: Mapping[str, str] | None = None) -> Verdict:
    """The verdict on a run that is over, from what its nodes and the engine said."""
    word = _STOPPED.get(state.stopping)
    if word:
        return Verdict(word=word, cause=state.stop_cause)
    if state.stopping == "failure" and state.stop_cause:
        return Verdict(word="failed", cause=state.stop_cause)
    counted = [state.nodes[name] for name in _counted(state)]
    if is_over(state) and all(node.exit_code == 0 for node in counted) and not (state.elastic and not state.outcome):
        return Verdict(word="passed")
    cause = _told_cause(state, first_cause(state, outputs))
    if cause is None and not is_over(state):
        unknown = ", ".join(node.name for node in counted if node.phase != "exited")
        message = f"how {unknown} ended is not known"
        return Verdict(word="inconclusive", cause=Failure(t=state.last_t, kind="engine", message=message))
    return Verdict(word="failed", cause=cause)


def _told_cause(state: ClusterState, cause: Failure | None) -> Failure | None:
    """The cause, with the fault that it came from where somebody wished it: the fault is then to blame, not the node or script."""
    fault = fault_of(state, cause) if cause else None
    if cause is None or fault is None:
        return cause
    hits = [failure for failure in state.failures if failure.node in fault.loses and fault_of(state, failure) is fault]
    hit = min(hits, key=lambda failure: failure.t, default=cause)
    hit = _explain_lost_node(hit, state)
    killed = hit.message.endswith("was killed (SIGKILL)")
    message = f"{hit.message} by {fault.id}" if killed else f"{hit.message} ({fault.id}: {fault.text})"
    return replace(hit, message=message)


def _explain_lost_node(failure: Failure, state: ClusterState) -> Failure:
    node = state.nodes.get(failure.node or "")
    if failure.rank is not None or failure.kind == "start" or not node or node.exit_code in (None, 0, 143):
        return failure  # a node that we stopped later tells nothing of why it was lost
    kind, how = _how_node_ended(node.exit_code, oom=node.oom_killed)
    return replace(failure, kind=kind, message=f"{node.name} {how}")


def _how_node_ended(exit_code: int, *, oom: bool) -> tuple[str, str]:
    if oom:
        return "oom", "was killed: it ran out of memory"
    if exit_code == 137:
        return "signal", "was killed (SIGKILL)"
    if exit_code > 128:
        return "signal", f"was ended by signal {exit_code - 128}"
    return "exit", f"ended with status {exit_code}"


def _early_leaver(state: ClusterState, consequence: Failure) -> Failure | None:
    """A rank that left in good order while others still needed it: they die of its absence, and it tells nothing."""
    left = [
        rank
        for rank in state.ranks.values()
        if rank.has_left and rank.joined_group and rank.exited_at and rank.exited_at <= consequence.t + 1.0
    ]
    if not left:
        return None
    first = min(left, key=lambda rank: rank.exited_at or 0.0)
    message = f"rank {first.rank} ended with status 0 while others still needed it"
    evidence = f"rank {consequence.rank} then failed with {consequence.message}"
    return Failure(
        t=first.exited_at or 0.0, kind="exit", node=first.node, rank=first.rank, message=message, traceback=evidence
    )


def _masters_failure(state: ClusterState) -> Failure | None:
    """Where no rank and no node failed: what the master said, or that it is gone."""
    if not state.ended_because and state.master_stopped_at is None:
        return None
    message = state.ended_because or f"the master ended with status {state.master_exit_code} while nodes needed it"
    return Failure(t=state.last_t, kind="engine", node="master", message=message)


def _silent_nodes(state: ClusterState, known: list[Failure], outputs: Mapping[str, str]) -> list[Failure]:
    """Nodes that ended badly without a word: their agent never came up, or was killed."""
    told = {failure.node for failure in (*known, *state.failures)}
    failures = []
    for node in state.nodes.values():
        if node.name in told or node.exit_code in (None, 0, 143):
            continue
        ranks = [rank for rank in state.ranks.values() if rank.node == node.name]
        never_started = all(rank.phase == "starting" for rank in ranks)
        kind, how = _how_node_ended(node.exit_code or 0, oom=node.oom_killed)
        message = f"{node.name} {how}" + (" before its ranks started" if never_started else "")
        failures.append(
            Failure(
                t=state.last_t,
                kind="start" if never_started and kind == "exit" else kind,
                node=node.name,
                message=message,
                traceback=outputs.get(node.name, ""),
            )
        )
    return failures


def _where_it_stands(state: ClusterState) -> str:
    phases: dict[str, list[str]] = {}
    for node in state.nodes.values():
        phases.setdefault(node.phase, []).append(node.name)
    return "; ".join(
        f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}: {phase}" for phase, names in phases.items()
    )
