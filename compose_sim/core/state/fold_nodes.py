"""Fold the events of nodes and rounds: a node starts, joins, is lost, exits and comes back."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.core.events.events import Event
from compose_sim.core.state.state import (
    GAP,
    MAX_ROUNDS,
    ClusterState,
    Failure,
    Load,
    NodeState,
    RankState,
    Round,
    Usage,
)

_STOPPED = (137, 143)  # by SIGKILL or SIGTERM


def _on_node_started(state: ClusterState, event: Event) -> ClusterState:
    node = state.nodes.get(event.node or "")
    if not node:
        return state
    first_node_at = event.t if state.first_node_at is None else min(state.first_node_at, event.t)
    node = replace(node, phase="rendezvous", attempts=node.attempts + 1, exit_code=None, oom_killed=False, gone_at=None)
    return replace(state, first_node_at=first_node_at).with_node(node)


def _on_node_joined(state: ClusterState, event: Event) -> ClusterState:
    """The master is connected to the node again: a lost node that did not exit is back."""
    node = state.nodes.get(str(event.data.get("node", "")))
    return _alive(state, node, event.t) if node else state


def _on_round(state: ClusterState, event: Event) -> ClusterState:
    """A round begins: the master reports it."""
    data, generation = event.data, event.generation
    if generation is None:
        return state
    restarts = int(data.get("restart_count") or 0)
    known = next((each for each in state.rounds if each.generation == generation), None)
    began_at = min(known.began_at, event.t) if known else event.t
    nodes = tuple(data.get("nodes") or (known.nodes if known else ()))
    world_size = int(data.get("world_size") or (known.world_size if known else len(state.ranks)))
    first = Round(generation=generation, world_size=world_size, nodes=nodes, began_at=began_at)
    round_ = replace(known, nodes=nodes, began_at=began_at) if known else first
    others = [each for each in state.rounds if each.generation != generation]
    rounds = tuple(sorted([*others, round_], key=lambda each: each.generation))[-MAX_ROUNDS:]
    state = replace(state, rounds=rounds, restarts=max(state.restarts, restarts))
    if state.generation is not None and generation < state.generation:
        return state
    state = state if known else replace(state, ranks=_ranks_of(state, round_), hang=None)
    return replace(state, generation=generation, round_at=max(state.round_at, event.t))


def _ranks_of(state: ClusterState, round_: Round) -> dict[int, RankState]:
    """Return the ranks of a round in the order of the nodes. Ranks that already have events in this round are kept."""
    ranks: list[RankState] = []
    for node in (state.nodes[name] for name in round_.nodes if name in state.nodes):
        ranks += [
            RankState(rank=len(ranks) + local, node=node.name, generation=round_.generation)
            for local in range(node.nproc)
        ]
    if len(ranks) != round_.world_size:  # an event written by hand, or of another version
        return {rank: each for rank, each in state.ranks.items() if rank < round_.world_size}
    known = (state.ranks.get(each.rank, each) for each in ranks)
    return {
        each.rank: was if was.generation == round_.generation and was.node == each.node else each
        for each, was in zip(ranks, known, strict=True)
    }


def _on_rendezvous(state: ClusterState, event: Event) -> ClusterState:
    """A node begins a round; without a master that reports rounds, because a driver directs the nodes, it is the first to say so."""
    rendezvous_at = event.t if state.rendezvous_at is None else min(state.rendezvous_at, event.t)
    state = replace(_on_round(state, event) if state.driver else state, rendezvous_at=rendezvous_at)
    node = state.nodes.get(event.node or "")
    if not node or event.generation != state.generation:
        return state
    return state.with_node(replace(node, phase="starting", gone_at=None))


def _on_gpus(state: ClusterState, event: Event) -> ClusterState:
    """Before the ranks start, a node reports which GPUs it sees. If they are not the planned ones, the run fails."""
    message = str(event.data.get("message", ""))
    if not message:
        return state
    return state.with_failure(Failure.of(event, "start", message))


def _on_start_failed(state: ClusterState, event: Event) -> ClusterState:
    """A node reports why it cannot start any rank."""
    hint = str(event.data.get("hint", ""))
    kind, message = GAP if event.data.get("gap") else "start", str(event.data.get("message", ""))
    return state.with_failure(Failure.of(event, kind, message, f"Try: {hint}" if hint else ""))


def _on_node_lost(state: ClusterState, event: Event) -> ClusterState:
    name = str(event.data.get("node", ""))
    node = state.nodes.get(name)
    if not node:
        return state
    reason = event.data.get("reason", "its connection to the master ended")
    injected = bool(event.data.get("injected"))
    state = state.with_failure(Failure.of(event, "exit", f"{name} was lost: {reason}", node=name, injected=injected))
    return state.with_node(replace(node, phase="lost", gone_at=event.t))


def _on_node_exited(state: ClusterState, event: Event) -> ClusterState:
    node = state.nodes.get(event.node or "")
    if not node or (node.gone_at is not None and event.t <= node.gone_at):  # it may be read after its stop is reported
        return state
    # The node itself reports the end; it is "exited" only when the engine reports that a moment later.
    return state.with_node(replace(node, phase="ended", exit_code=event.data.get("exit_code")))


def _on_node_stopped(state: ClusterState, event: Event) -> ClusterState:
    """The engine reports that a node has stopped; this overrides what the node itself reported."""
    if event.node == "master":
        return replace(state, master_exit_code=event.data.get("exit_code"), master_stopped_at=event.t)
    node = state.nodes.get(event.node or "")
    if not node:
        return state
    code, oom = event.data.get("exit_code"), bool(event.data.get("oom"))
    stopped = bool(state.stopping) and code in _STOPPED and not oom
    node = replace(node, phase="exited", exit_code=code, oom_killed=oom, was_stopped=stopped, gone_at=event.t)
    return state.with_node(node)


def _on_usage(state: ClusterState, event: Event) -> ClusterState:
    node, data = state.nodes.get(event.node or ""), event.data
    if not node:
        return state
    before, seconds = node.usage, float(data.get("cpu_s") or 0.0)
    passed = event.t - before.t if before else 0.0
    memory = int(data.get("memory_bytes") or 0)
    gpu_memory = data.get("gpu_memory_bytes")
    usage = Usage(
        t=event.t,
        cpu_seconds=seconds,
        cpus=max(0.0, seconds - before.cpu_seconds) / passed if before and passed > 0 else None,
        memory_bytes=memory,
        peak_memory_bytes=max(memory, before.peak_memory_bytes if before else 0),
        memory_limit_bytes=data.get("memory_limit_bytes"),
        received_bytes=data.get("received_bytes"),
        sent_bytes=data.get("sent_bytes"),
        gpu_use=data.get("gpu_use"),
        gpu_memory_bytes=gpu_memory,
        peak_gpu_memory_bytes=max(gpu_memory, (before.peak_gpu_memory_bytes if before else None) or 0)
        if gpu_memory is not None
        else None,
    )
    load = _loaded(node.load, before, usage) if before and node.phase == "running" else node.load
    state = state.with_node(replace(node, usage=usage, load=load))
    # The engine may report the end of a node after it was started again. A node that still reports usage is alive.
    return _alive(state, state.nodes[node.name], event.t) if node.phase == "exited" else state


def _loaded(load: Load, before: Usage, now: Usage) -> Load:
    """Return the load with what was used between two samples, unless the node was started again in between."""
    if now.t <= before.t or now.cpu_seconds < before.cpu_seconds:
        return load
    sent = None if now.sent_bytes is None else now.sent_bytes - (before.sent_bytes or 0)
    passed, cpu_seconds = now.t - before.t, now.cpu_seconds - before.cpu_seconds
    return load.after(seconds=passed, cpu_seconds=cpu_seconds, sent_bytes=sent, gpu_use=now.gpu_use)


def _alive(state: ClusterState, node: NodeState, t: float) -> ClusterState:
    """Return the state after a sign of life of the node at `t`: if that was after the node was gone, it is back."""
    if not node.is_gone or node.gone_at is None or t <= node.gone_at:
        return state
    return state.with_node(replace(node, phase="rendezvous", exit_code=None, oom_killed=False, gone_at=None))


HANDLERS = {
    "node-started": _on_node_started,
    "node-joined": _on_node_joined,
    "round": _on_round,
    "rendezvous": _on_rendezvous,
    "gpus": _on_gpus,
    "start-failed": _on_start_failed,
    "node-lost": _on_node_lost,
    "node-exited": _on_node_exited,
    "node-stopped": _on_node_stopped,
    "usage": _on_usage,
}
