"""How does each event move the state of the cluster? One function a kind of event; a run is the fold over all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compose_sim.core.events import Event
from compose_sim.core.plan import Plan
from compose_sim.core.state import ClusterState, Failure, NodeState, RankState, Usage, initial_state


def fold_all(plan: Plan, events: list[Event]) -> ClusterState:
    """The last state of a run, from its events alone."""
    state = initial_state(plan)
    for event in events:
        state = fold(state, event)
    return state


def fold(state: ClusterState, event: Event) -> ClusterState:
    """The state after one more event. Events may arrive a little out of order between nodes; none is required."""
    state = replace(state, last_t=max(state.last_t, event.t))
    handler = _HANDLERS.get(event.kind)
    return handler(state, event) if handler else state


def _on_started(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, started_at=event.t)


def _on_node_started(state: ClusterState, event: Event) -> ClusterState:
    node = state.nodes.get(event.node or "")
    if not node:
        return state
    state = replace(state, first_node_at=_earlier(state.first_node_at, event.t))
    return _with_node(state, replace(node, phase="rendezvous", attempts=node.attempts + 1, exit_code=None))


def _on_environment(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, versions={**event.data, **state.versions})


def _on_rendezvous(state: ClusterState, event: Event) -> ClusterState:
    data, restarts = event.data, int(event.data.get("restart_count", 0))
    state = replace(
        state,
        generation=event.generation,
        restarts=max(state.restarts, restarts),
        round_at=max(state.round_at, event.t),
        rendezvous_at=_earlier(state.rendezvous_at, event.t),
    )
    node = state.nodes.get(event.node or "")
    ranks = {rank: value for rank, value in state.ranks.items() if rank < int(data.get("world_size", len(state.ranks)))}
    state = replace(state, ranks=ranks)
    return _with_node(state, replace(node, phase="starting")) if node else state


def _on_rank_started(state: ClusterState, event: Event) -> ClusterState:
    return _update_rank(state, event)


def _on_init(state: ClusterState, event: Event) -> ClusterState:
    done = event.data.get("phase") == "done"
    asked_for = event.data.get("world_size")
    phase = "running" if done else "init"
    return _update_rank(state, event, phase=phase, joined_group=True, in_init=not done, init_world_size=asked_for)


def _on_step(state: ClusterState, event: Event) -> ClusterState:
    state = replace(state, first_step_at=_earlier(state.first_step_at, event.t))
    return _update_rank(state, event, phase="running", step=event.data.get("step"))


def _on_metric(state: ClusterState, event: Event) -> ClusterState:
    state = replace(state, metrics={**state.metrics, **event.data})
    return _update_rank(state, event, metric=event.data)


def _on_exception(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    message = f"{data.get('type', 'Exception')}: {data.get('message', '')}".rstrip(": ")
    failure = Failure(
        t=event.t,
        kind="exception",
        node=event.node,
        rank=event.rank,
        message=message,
        traceback=str(data.get("traceback", "")),
    )
    return _update_rank(state, event, exception=failure)


def _on_script_ended(state: ClusterState, event: Event) -> ClusterState:
    return _update_rank(state, event, phase="ended", script_exit_code=event.data.get("exit_code"))


def _on_rank_exited(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    exit_code, signal = data.get("exit_code"), data.get("signal")
    state = _update_rank(
        state, event, phase="exited", exit_code=exit_code, signal=signal, exited_at=event.t, in_init=False
    )
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    if rank and not data.get("stopped") and (signal or exit_code):
        state = replace(state, failures=(*state.failures, _failure_of(rank, event)))
    return state


def _failure_of(rank: RankState, event: Event) -> Failure:
    exit_code, signal = event.data.get("exit_code"), event.data.get("signal")
    if rank.exception and not signal:
        return rank.exception
    name = _SIGNALS.get(signal or 0, f"signal {signal}")
    if event.data.get("oom"):
        kind, message = "oom", f"rank {rank.rank} was killed: {rank.node} ran out of memory"
    elif signal and rank.script_exit_code == 0:
        kind, message = "teardown", f"rank {rank.rank} crashed in teardown, after training ended ({name})"
    elif signal:
        kind, message = "signal", f"rank {rank.rank} was ended by {name}"
    else:
        kind, message = "exit", f"rank {rank.rank} exited with status {exit_code}"
    return Failure(t=event.t, kind=kind, node=rank.node, rank=rank.rank, message=message)


def _on_node_lost(state: ClusterState, event: Event) -> ClusterState:
    name = str(event.data.get("node", ""))
    node = state.nodes.get(name)
    if not node:
        return state
    reason = event.data.get("reason", "its connection to the master ended")
    failure = Failure(t=event.t, kind="exit", node=name, message=f"{name} was lost: {reason}")
    state = replace(state, failures=(*state.failures, failure))
    return _with_node(state, replace(node, phase="lost"))


def _on_node_exited(state: ClusterState, event: Event) -> ClusterState:
    node = state.nodes.get(event.node or "")
    # Only the engine's word makes a node "exited"; this is the node's own, a moment earlier.
    return _with_node(state, replace(node, phase="ended", exit_code=event.data.get("exit_code"))) if node else state


def _on_node_stopped(state: ClusterState, event: Event) -> ClusterState:
    """The engine's own word on a node that is no longer running: it outranks what the node said of itself."""
    if event.node == "master":
        return replace(state, master_exit_code=event.data.get("exit_code"), master_stopped_at=event.t)
    node = state.nodes.get(event.node or "")
    if not node:
        return state
    oom = bool(event.data.get("oom"))
    return _with_node(state, replace(node, phase="exited", exit_code=event.data.get("exit_code"), oom_killed=oom))


def _on_usage(state: ClusterState, event: Event) -> ClusterState:
    node, data = state.nodes.get(event.node or ""), event.data
    if not node:
        return state
    before, seconds = node.usage, float(data.get("cpu_s", 0.0))
    passed = event.t - before.t if before else 0.0
    memory = int(data.get("memory_bytes") or 0)
    usage = Usage(
        t=event.t,
        cpu_seconds=seconds,
        cpus=max(0.0, seconds - before.cpu_seconds) / passed if before and passed > 0 else None,
        memory_bytes=memory,
        peak_memory_bytes=max(memory, before.peak_memory_bytes if before else 0),
        memory_limit_bytes=data.get("memory_limit_bytes"),
        received_bytes=data.get("received_bytes"),
        sent_bytes=data.get("sent_bytes"),
    )
    return _with_node(state, replace(node, usage=usage))


def _on_stalled(state: ClusterState, event: Event) -> ClusterState:
    since = event.t - float(event.data.get("since_s") or 0.0)
    return _update_rank(state, event, stall=event.data, stalled_since=since)


def _on_resumed(state: ClusterState, event: Event) -> ClusterState:
    return replace(_update_rank(state, event, stall=None), hang=None)


def _on_breakpoint(state: ClusterState, event: Event) -> ClusterState:
    return _update_rank(state, event, at_breakpoint=event.data.get("phase") != "released")


def _on_hang(state: ClusterState, event: Event) -> ClusterState:
    return replace(state, hang=_told(event, "hang"))


def _on_ended(state: ClusterState, event: Event) -> ClusterState:
    """The master's verdict on the rendezvous; a run that passed needs no reason."""
    return state if event.data.get("passed") else replace(state, ended_because=str(event.data.get("reason", "")))


def _on_stopping(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    if state.stopping:
        return state
    cause = _told(event, str(data.get("cause", "engine"))) if data.get("message") else None
    return replace(state, stopping=str(data.get("reason", "")), stop_cause=cause)


def _told(event: Event, kind: str) -> Failure:
    message, traceback = str(event.data.get("message", "")), str(event.data.get("traceback") or "")
    return Failure(t=event.t, kind=kind, node=event.node, rank=event.rank, message=message, traceback=traceback)


def _earlier(known: float | None, t: float) -> float:
    return t if known is None else min(known, t)


def _with_node(state: ClusterState, node: NodeState) -> ClusterState:
    return replace(state, nodes={**state.nodes, node.name: node})


def _with_rank(state: ClusterState, rank: RankState) -> ClusterState:
    return replace(state, ranks={**state.ranks, rank.rank: rank})


def _update_rank(state: ClusterState, event: Event, **changes: Any) -> ClusterState:
    """
    The rank of the event, with these changes.

    The first event of a round begins the rank anew, whichever it is: a rank may speak before its agent has said that it started.
    """
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    known = rank.generation if rank and rank.generation is not None else -1
    if event.rank is not None and event.node and event.generation is not None and event.generation > known:
        rank = RankState(rank=event.rank, node=event.node, generation=event.generation)
    if rank is None:
        return state
    return _phase_of_node(_with_rank(state, replace(rank, **changes)), rank.node)


def _phase_of_node(state: ClusterState, name: str) -> ClusterState:
    node = state.nodes.get(name)
    if not node or node.phase in ("exited", "lost"):
        return state
    phases = [rank.phase for rank in state.ranks.values() if rank.node == name]
    slowest = min(phases, key=_PHASES.index, default=node.phase)
    return _with_node(state, replace(node, phase="ended" if slowest == "exited" else slowest))


_PHASES = ["starting", "init", "running", "ended", "exited"]
_SIGNALS = {
    2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM",
}  # fmt: skip
_HANDLERS = {
    "started": _on_started,
    "node-started": _on_node_started,
    "environment": _on_environment,
    "rendezvous": _on_rendezvous,
    "rank-started": _on_rank_started,
    "init": _on_init,
    "step": _on_step,
    "metric": _on_metric,
    "exception": _on_exception,
    "script-ended": _on_script_ended,
    "rank-exited": _on_rank_exited,
    "node-lost": _on_node_lost,
    "node-exited": _on_node_exited,
    "node-stopped": _on_node_stopped,
    "usage": _on_usage,
    "stalled": _on_stalled,
    "resumed": _on_resumed,
    "breakpoint": _on_breakpoint,
    "hang": _on_hang,
    "ended": _on_ended,
    "stopping": _on_stopping,
}
