"""Find the failure that the others followed from, and describe it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.state.fault_attribution import fault_of, generation_of, is_excused
from compose_sim.core.state.state import GAP, ClusterState, Failure, NodeState

_CONSEQUENCE_WITHIN_S = 5.0
_CLOSED = "connection closed"  # by the end of the node, before composesim could stop it
# So torch ends a rank whose peer has closed the connections of NCCL, and Paddle one that uses Gloo
_ABORTED = re.compile(r"was killed by SIGABRT$|^rank \d+ aborted(?!: CUDA error)")
_GOOD_ENDS = (None, 0, 143)  # not ended, ended well, or stopped by composesim (SIGTERM)

# What a rank reports when another one has gone. It is never the cause if something else failed at about the same time.
_CONSEQUENCE = re.compile(
    r"closed by peer|reset by peer|[Bb]roken pipe|[Cc]onnection (?:was |has been )?(?:closed|refused|reset|aborted)"
    r"|remote process exited|peer.{0,200}(?:exited|closed)|socket.{0,200}(?:closed|timed out)|DistNetworkError|DistBackendError"
    r"|recvValue failed|failed to get async error|NCCL Last Error|NCCL (?:Async Error|\w{1,60} failed)|ncclRemoteError|was lost"
    r"|Horovod has been shut down"
)


def is_consequence(message: str) -> bool:
    """Return whether a rank reports this because another one has gone."""
    return bool(_CONSEQUENCE.search(message))


def first_cause(state: ClusterState, outputs: Mapping[str, str] | None = None) -> Failure | None:
    """Return the failure that the others followed from. `outputs` holds the last lines of nodes that started no rank."""
    known = state.failures
    if state.elastic:  # injected failures do not fail an elastic run; they count only if there are no others
        known = tuple(failure for failure in known if not is_excused(state, failure)) or known
    # What ended an earlier round did not end the run: the ranks have started again since.
    latest = max((generation_of(state, failure) for failure in known), default=-1)
    known = tuple(failure for failure in known if generation_of(state, failure) == latest)
    failures = [_explain_lost_node(failure, state) for failure in known]
    failures += _silent_nodes(state, failures, outputs or {})
    if not failures:
        return master_failure(state)
    failures.sort(key=lambda failure: failure.t)
    raised = _raised_before(state, failures[0])
    if raised:
        return raised
    causes = [failure for failure in failures if not is_consequence(failure.message)]
    if causes and causes[0].t <= failures[0].t + _CONSEQUENCE_WITHIN_S:
        return (_early_leaver(state, causes[0]) if _ABORTED.search(causes[0].message) else None) or causes[0]
    return _early_leaver(state, failures[0]) or failures[0]


def blame_fault(state: ClusterState, cause: Failure | None) -> Failure | None:
    """Return the cause with the injected fault that it came from, if any: then the fault is to blame, not node or script."""
    fault = fault_of(state, cause) if cause else None
    if cause is None or fault is None:
        return cause
    hits = [failure for failure in state.failures if failure.node in fault.loses and fault_of(state, failure) is fault]
    hit = _explain_lost_node(min(hits, key=lambda failure: failure.t, default=cause), state)
    killed = hit.message.endswith("was killed (SIGKILL)")
    first, *rest = hit.message.split("\n")
    named = f"{first} by {fault.id}" if killed else f"{first} ({fault.id}: {fault.text})"
    message = "\n".join((named, *rest))
    return replace(hit, message=message)


def master_failure(state: ClusterState) -> Failure | None:
    """Return why the master ended the run, or that it is gone; the cause if no rank and no node failed."""
    if not state.ended_because and state.master_stopped_at is None:
        return None
    gone = f"the master exited with status {state.master_exit_code} while nodes still needed it"
    return Failure(t=state.last_t, kind="engine", node="master", message=state.ended_because or gone)


def failed_at_start(state: ClusterState) -> tuple[str, ...]:
    """Return the nodes that failed before any of their ranks started."""
    started = {rank.node for rank in state.ranks.values() if rank.phase != "starting"}
    nodes = state.nodes.values()
    return tuple(node.name for node in nodes if node.exit_code not in _GOOD_ENDS and node.name not in started)


def _explain_lost_node(failure: Failure, state: ClusterState) -> Failure:
    node = state.nodes.get(failure.node or "")
    if node and node.oom_killed and failure.rank is not None and failure.message.endswith("was killed by SIGKILL"):
        # A cluster has killed the rank before the agent, which does not know why.
        who = node.name if node.has_memory_limit else "this machine"
        return replace(failure, kind="oom", message=f"rank {failure.rank} was killed: {who} ran out of memory")
    if failure.rank is not None or failure.kind in ("start", GAP) or not node or node.exit_code in _GOOD_ENDS:
        return failure  # the exit code of a node that composesim stopped later does not explain why it was lost
    if node.was_stopped and not failure.message.endswith(_CLOSED):
        return replace(failure, message=f"composesim stopped {failure.message.replace(' was lost: ', ': ', 1)}")
    kind, how = _how_node_ended(node)
    return replace(failure, kind=kind, message=f"{node.name} {how}")


def _how_node_ended(node: NodeState) -> tuple[str, str]:
    exit_code = node.exit_code or 0
    if node.oom_killed:
        return "oom", f"was killed: {'it' if node.has_memory_limit else 'this machine'} ran out of memory"
    if exit_code == 137:
        return "signal", "was killed (SIGKILL)"
    if exit_code > 128:
        return "signal", f"was killed by signal {exit_code - 128}"
    return "exit", f"exited with status {exit_code}"


def _raised_before(state: ClusterState, first: Failure) -> Failure | None:
    """
    Return an exception that came before the first failure, of a rank that composesim stopped before it had exited.

    A rank closes its connections while it exits, which may take longer than the others need to fail and to be noticed.
    """
    # Other failures get their time when they are noticed. That of a rank whose peer has closed the connections is later in any case.
    aborted = first.kind not in ("exception", GAP)
    if aborted and not _ABORTED.search(first.message):
        return None
    raised = [each for rank in state.ranks.values() if (each := rank.exception) and each.t < first.t]
    # With its traceback: it may follow from an abort that took long to be noticed.
    texts = [f"{each.message}\n{each.traceback}" if aborted else each.message for each in raised]
    raised = [each for each, text in zip(raised, texts, strict=True) if not is_consequence(text)]
    raised = [each for each in raised if not (state.elastic and is_excused(state, each))]
    return min(raised, key=lambda failure: failure.t, default=None)


def _early_leaver(state: ClusterState, consequence: Failure) -> Failure | None:
    """Return a rank that exited with status 0 while others still needed it. They fail without it, and it reports nothing."""
    left = [
        rank
        for rank in state.ranks.values()
        if rank.has_left and rank.joined_group and rank.exited_at and rank.exited_at <= consequence.t + 1.0
    ]
    if not left:
        return None
    first = min(left, key=lambda rank: rank.exited_at or 0.0)
    return Failure(
        t=first.exited_at or 0.0,
        kind="exit",
        node=first.node,
        rank=first.rank,
        message=f"rank {first.rank} exited with status 0 while other ranks still needed it",
        traceback=f"rank {consequence.rank} then failed with {consequence.message}",
    )


def _silent_nodes(state: ClusterState, known: list[Failure], outputs: Mapping[str, str]) -> list[Failure]:
    """Return nodes that failed without any event: the agent never started, or was killed."""
    reported = {failure.node for failure in (*known, *state.failures)}
    never_started = failed_at_start(state)
    failures = []
    for node in state.nodes.values():
        if node.name in reported or node.exit_code in _GOOD_ENDS or node.was_stopped:
            continue
        kind, how = _how_node_ended(node)
        at_start = node.name in never_started
        failures.append(
            Failure(
                t=state.last_t,
                kind="start" if at_start and kind == "exit" else kind,
                node=node.name,
                message=f"{node.name} {how}" + (" before its ranks started" if at_start else ""),
                traceback=outputs.get(node.name, ""),
            )
        )
    return failures
