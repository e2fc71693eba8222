"""How does a plan become a report? The corridor, walked once from left to right: document, engine, events, verdict, report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from compose_sim import __version__
from compose_sim.app.render import write_documents
from compose_sim.core.checks import run_checks, why_no_check
from compose_sim.core.events.events import Event
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.report import make_report
from compose_sim.core.scenarios import Player
from compose_sim.core.state.fold import fold
from compose_sim.core.state.recovery import newly_recovered
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.core.verdict.hang import find_hang
from compose_sim.core.verdict.verdict import StopReason, is_over, judge, reason_to_stop
from compose_sim.engine.control.fault_controller import Performer
from compose_sim.engine.docker.network import Networks
from compose_sim.engine.host.ports import port_in_use, port_in_use_error
from compose_sim.engine.lifetime.interrupts import WakeUps, interrupts_raise, interrupts_wake
from compose_sim.engine.lifetime.supervisor import start_supervisor
from compose_sim.engine.protocol import Engine, NodeStatus
from compose_sim.engine.run_folder.check_inputs import read_case, read_timeline
from compose_sim.engine.run_folder.event_tail import EventTail, poll_interval
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError, SpecError

STOP_GRACE_S = 3.0
_LOOK_S = 0.05


class Listener(Protocol):
    """Who watches a run: told what is new, and where the cluster stands."""

    def progress(self, text: str) -> None:
        """One line about something slow that happens before the nodes start."""
        ...

    def show(self, events: list[Event], state: ClusterState) -> None:
        """What happened since the last call (an empty list when nothing did), and the state after it."""
        ...

    def close(self) -> None:
        """The run is over: leave the screen in order."""
        ...


def run_cluster(
    plan: Plan,
    engine: Engine,
    folder: RunFolder,
    host: Host,
    listener: Listener,
    *,
    dotenv: str = "",
    replan: Callable[[], Plan] | None = None,
    player: Player | None = None,
) -> dict[str, Any]:
    """
    Run a plan to its end and return the report; nothing of the run but its folder is left, unless the plan says keep.

    `replan` makes a fresh plan where another run took the subnet between planning and starting. `player` intervenes in the run.
    Raises ComposesimError where the run could not be started at all.
    """
    Networks(plan, engine).check(plan.links)
    folder.claim()
    if engine.statuses(plan.run):
        raise SpecError(
            f"nodes of a run named '{plan.run}' exist already",
            hint=f"take another --name, or remove them: composesim down --run {plan.run}",
        )
    folder.clear(*plan.user_ids, token=plan.has_token)
    folder.write_plan(plan)
    with interrupts_raise(), start_supervisor(engine.name, plan.run, folder.path) as supervisor:
        try:
            image = engine.prepare(plan, listener.progress)
            facts = _facts(engine, host, image)
            plan = _start(plan, engine, folder, image=image, dotenv=dotenv, replan=replan)
            state = _follow(plan, engine, folder, listener, player)
            report = _report(plan, engine, folder, state, facts)
            folder.write_report(report)
        finally:
            _clean_up(plan, engine, listener)
            supervisor.release()
    return report


def _clean_up(plan: Plan, engine: Engine, listener: Listener) -> None:
    """Remove the run, unless it is kept; an engine that has gone away must not cost the person the report."""
    if plan.keep:
        return
    try:
        engine.remove(plan.run)
    except ComposesimError as error:
        listener.progress(f"{error.message}; something may be left. Try: composesim prune")


def _facts(engine: Engine, host: Host, image: str) -> dict[str, Any]:
    """What the run is about to run on; asked now, since the engine may be gone at the end."""
    return {
        "host": host.name,
        "cpus": host.cpus,
        "memory_bytes": host.memory_bytes,
        "engine": engine.describe(),
        "driver": host.gpus.driver or None,
        "image_digest": engine.image_digest(image),
    }


def _start(
    plan: Plan, engine: Engine, folder: RunFolder, *, image: str, dotenv: str, replan: Callable[[], Plan] | None
) -> Plan:
    for attempts_left in (2, 1, 0):
        if engine.name == "docker":
            write_documents(plan, folder.path, image=image, dotenv=dotenv)
        folder.append_event("started", version=__version__)
        try:
            engine.start(plan, folder)
        except ComposesimError as error:
            # Somebody took the subnet, or a port that is to be published, since this plan was made.
            port = port_in_use(error.evidence)
            if not (replan and attempts_left and (port or "Pool overlaps" in error.evidence)):
                raise
            engine.remove(plan.run)
            plan = replan()
            if port in (each.host_port for each in plan.published):
                raise port_in_use_error(plan, port) from error
            folder.write_plan(plan)
        else:
            break
    return plan


def _follow(
    plan: Plan, engine: Engine, folder: RunFolder, listener: Listener, player: Player | None = None
) -> ClusterState:
    """Watch until every node has ended, stopping the run where there is a reason to; the last state."""
    state = initial_state(plan)
    tail = EventTail(folder.path)
    wake_ups = WakeUps()
    watcher = threading.Thread(target=_watch, args=(plan, engine, folder, wake_ups), daemon=True)
    performer = Performer(plan, engine, folder)
    watcher.start()
    try:
        with interrupts_wake(wake_ups):
            while not is_over(state) and watcher.is_alive():
                looked = time.monotonic()
                events = tail.poll()
                state = _look(state, events, listener)
                _intervene(performer, player, events, state)
                _tell_hang(plan, folder, state)
                _tell_recovery(folder, state)
                stop = None if state.stopping else reason_to_stop(state, plan, now=time.time())
                if stop:
                    _stop(plan, engine, folder, stop, performer, wake_ups)
                elif not is_over(state) and wake_ups.wait(poll_interval(looked)):
                    listener.progress("Stopping the nodes; once more to kill them.")
                    _stop(plan, engine, folder, StopReason(reason="interrupted"), performer, wake_ups)
        performer.close()
        for _ in range(2):  # a recovery may be told of the last events
            last = tail.finish()
            state = _look(state, last, listener)
            if player:
                player.hear(last)
            _tell_recovery(folder, state)
        return state
    finally:
        performer.close()
        tail.close()


def _intervene(performer: Performer, player: Player | None, events: list[Event], state: ClusterState) -> None:
    """Tell the performer what is new, and have it do what the player wants."""
    performer.hear(events)
    for request, intervention in player.due(events, state, now=time.time()) if player else ():
        performer.submit(request, intervention)


def _look(state: ClusterState, events: list[Event], listener: Listener) -> ClusterState:
    for event in events:
        state = fold(state, event)
    listener.show(events, state)
    return state


def _tell_hang(plan: Plan, folder: RunFolder, state: ClusterState) -> None:
    """Write down, once, that nothing moves any more and why: whoever follows the run is told."""
    hang = find_hang(state, plan, now=time.time()) if not (state.hang or state.stopping) else None
    if hang:
        folder.append_event("hang", node=hang.node, rank=hang.rank, message=hang.message, traceback=hang.traceback)


def _tell_recovery(folder: RunFolder, state: ClusterState) -> None:
    """Write down, once, that training went on after a loss."""
    recovery = newly_recovered(state)
    if recovery:
        told = asdict(recovery)
        folder.append_event("recovered", {"id": told.pop("fault"), **told})


def _watch(plan: Plan, engine: Engine, folder: RunFolder, wake_ups: WakeUps) -> None:
    """In a thread: the engine's word on each node that stops, written where all other events are."""
    try:
        for status in engine.exits(plan):
            _tell_end(plan, engine, folder, status)
            wake_ups.wake()
    except (ComposesimError, OSError) as error:
        folder.append_event("stopping", reason="engine", cause="engine", message=str(error))
        wake_ups.wake()


def _tell_end(plan: Plan, engine: Engine, folder: RunFolder, status: NodeStatus) -> None:
    if status.role == "service":
        words = engine.output(plan.run, status.node)
        folder.append_event("service", name=status.node, phase="ended", exit_code=status.exit_code, words=words)
    else:
        folder.append_event("node-stopped", node=status.node, exit_code=status.exit_code, oom=status.oom_killed)


def _stop(
    plan: Plan, engine: Engine, folder: RunFolder, stop: StopReason, performer: Performer, wake_ups: WakeUps
) -> None:
    """Tell the nodes to end, and kill those that do not in time; all of them at once where somebody wants the end once more."""
    cause = stop.cause
    if cause:
        told = {"cause": cause.kind, "message": cause.message, "traceback": cause.traceback}
        folder.append_event("stopping", node=cause.node, rank=cause.rank, reason=stop.reason, **told)
    else:
        folder.append_event("stopping", reason=stop.reason)
    performer.give_up()
    hurry = False
    while performer.is_at_work() and not hurry:
        hurry = wake_ups.wait(_LOOK_S)
    if hurry:
        engine.stop(plan.run, grace_s=0)
    performer.close()  # what is held could not end
    try:
        with interrupts_raise():
            hurry = wake_ups.wait(0) or hurry
            engine.stop(plan.run, grace_s=0 if hurry else STOP_GRACE_S)
    except KeyboardInterrupt:
        engine.stop(plan.run, grace_s=0)


def _report(
    plan: Plan, engine: Engine, folder: RunFolder, state: ClusterState, facts: dict[str, Any]
) -> dict[str, Any]:
    outputs = _last_words(plan, engine, folder, state) if judge(state).word == "failed" else {}
    folder.append_event("verdict", verdict=judge(state, outputs).word)
    report = make_report(plan, state, host=facts, outputs=outputs)
    why_not = why_no_check(plan.launcher)
    case = read_case(folder.path, verdict=report["verdict"], cause=report["cause"], why_not=why_not)
    return {
        **report,
        "timeline": read_timeline(folder.path),
        "checks": [result.to_dict() for result in run_checks(case)],
    }


def _last_words(plan: Plan, engine: Engine, folder: RunFolder, state: ClusterState) -> dict[str, str]:
    """What nodes that ended badly without starting a rank wrote last: the evidence of a start that failed."""
    words = {}
    for node in state.nodes.values():
        ranks = [rank for rank in state.ranks.values() if rank.node == node.name]
        if node.exit_code not in (None, 0, 143) and all(rank.phase == "starting" for rank in ranks):
            own_log = folder.path / "logs" / f"{node.name}.log"
            with suppress(FileNotFoundError):
                words[node.name] = "\n".join(own_log.read_text(errors="replace").splitlines()[-20:])
            words[node.name] = words.get(node.name) or engine.output(plan.run, node.name)
    return words
