"""Follow a started run until all nodes have ended, and stop it if there is a reason to."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import suppress
from dataclasses import asdict

from compose_sim.app.listener import Listener
from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import DumpRanks
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios import Player
from compose_sim.core.state.fault_attribution import newly_recovered
from compose_sim.core.state.fold import fold_events
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.core.text import format_seconds
from compose_sim.core.verdict.hang import find_hang
from compose_sim.core.verdict.time_limit import to_ask
from compose_sim.core.verdict.verdict import StopReason, is_over, judge, reason_to_stop
from compose_sim.engine.control.fault_controller import FaultController
from compose_sim.engine.lifetime.interrupts import WakeUps, interrupts_raise, interrupts_wake
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.event_tail import EventTail, poll_interval
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import with_counted_steps
from compose_sim.errors import ComposesimError

STOP_GRACE_S = 3.0
_LOOK_S = 0.05
_JUMP_S = 5.0
_ANSWER_S = 10.0  # a busy rank writes its stack between two operations


class RunLoop:
    """Turns the events of a run into states, and acts on them: reports hangs, performs faults, stops the nodes."""

    def __init__(
        self, plan: Plan, engine: Engine, folder: RunFolder, listener: Listener, player: Player | None = None
    ) -> None:
        """Start to perform faults; the nodes must have been started. `player` chooses faults of a scenario."""
        self._plan, self._engine, self._folder = plan, engine, folder
        self._listener, self._player = listener, player
        self._state = initial_state(plan)
        self._lag = folder.clock.lag()
        self.controller = FaultController(plan, engine, folder)
        self.wake_ups = WakeUps()
        self.was_interrupted = False  # by Ctrl-C or SIGTERM, not by another command
        self.output_s = 0.0  # how long it took to show the rest of the output after the run was over
        self._engine_failed = self._has_warned = False
        self._asked_at: float | None = None  # where the ranks are, because the time is over

    def follow(self) -> ClusterState:
        """Follow the run until every node has ended, and return its last state."""
        tail = EventTail(self._folder.path, self._plan, own=self._own_events)
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            with interrupts_wake(self.wake_ups):
                while not is_over(self._state) and watcher.is_alive() and not self._engine_failed:
                    looked, now = time.monotonic(), self._folder.clock.now()
                    self._look(events := tail.poll())
                    self._intervene(events)
                    # As of `now`: what has happened since is in no event yet, and much output takes long to process.
                    self._record_hang(now)
                    self._record_jump()
                    reason = None if self._state.stopping else reason_to_stop(self._state, self._plan, now=now)
                    if reason and not (reason.reason == "timeout" and self._waits_for_answers(now)):
                        self.stop(reason)
                    elif not is_over(self._state) and self.wake_ups.wait(poll_interval(looked)):
                        self.was_interrupted = True
                        self._listener.progress("Stopping… press Ctrl-C again to kill the nodes now.")
                        self.stop(StopReason(reason="interrupted"))
            self.controller.close()
            ended = time.monotonic()
            if judge(self._state).word != "passed" and (problem := self._engine.problem()):
                self._record_engine_failure(problem)  # nodes ended because of it
            for _ in range(2):  # the last events may complete a recovery, which is an event too
                for events in tail.finish():
                    self._look(events)
                    if self._player:
                        self._player.observe(events)
            self.output_s = time.monotonic() - ended
            return with_counted_steps(self._folder, self._state)
        finally:
            self.controller.close()
            tail.close()

    def stop(self, reason: StopReason) -> None:
        """
        Ask the nodes to end, and kill those that do not end in time. A second interrupt kills all of them at once.

        An engine that cannot end them ends the run: it will not report their end either.
        """
        cause = reason.cause
        data = {"cause": cause.kind, "message": cause.message, "traceback": cause.traceback} if cause else {}
        node, rank = (cause.node, cause.rank) if cause else (None, None)
        self._folder.append_event("stopping", node=node, rank=rank, reason=reason.reason, **data)
        self.controller.cancel()
        try:
            self._end_nodes()
        except ComposesimError as error:
            self._record_engine_failure(self._engine.problem() or str(error))
            self._engine_failed = True

    def _end_nodes(self) -> None:
        hurry = False
        while self.controller.is_busy() and not hurry:
            hurry = self.wake_ups.wait(_LOOK_S)
        if hurry:
            self._engine.stop(self._plan.run, grace_s=0)
        self.controller.close()  # a node that a fault holds could not end
        try:
            with interrupts_raise():
                hurry = self.wake_ups.wait(0) or hurry
                self._engine.stop(self._plan.run, grace_s=0 if hurry else STOP_GRACE_S)
        except KeyboardInterrupt:
            self._engine.stop(self._plan.run, grace_s=0)

    def _look(self, events: list[Event]) -> None:
        """Fold new events into the state, and record a recovery that they complete."""
        self._state = fold_events(self._state, events)
        self._listener.show(events, self._state)
        if recovery := newly_recovered(self._state):
            data = asdict(recovery)
            self._folder.append_event("recovered", {"id": data.pop("fault"), **data})

    def _own_events(self) -> list[Event]:
        """Return new events of composesim; say once that some could not be written, such as to a full disk."""
        own = self._folder.take_appended()
        problem = next((problem for _, problem in own if problem), None)
        if problem and not self._has_warned:
            self._has_warned = True
            self._listener.progress(f"composesim's own events are not written: {problem.message}")
        return [event for event, _ in own]

    def _intervene(self, events: list[Event]) -> None:
        """Perform what the player wants after these events."""
        self.controller.observe(events)
        due = self._player.due(events, self._state, now=self._folder.clock.now()) if self._player else ()
        for request, intervention in due:
            self.controller.submit(request, intervention)

    def _record_hang(self, now: float) -> None:
        """Record once that no rank moves any more, and why."""
        state = self._state
        hang = None if state.hang or state.stopping else find_hang(state, self._plan, now=now)
        if hang:
            data = {"message": hang.message, "traceback": hang.traceback, "final": hang.is_final}
            self._folder.append_event("hang", data, node=hang.node, rank=hang.rank)

    def _waits_for_answers(self, now: float) -> bool:
        """Ask the ranks once where they are; return whether to wait for the answers of some."""
        if self._asked_at is None:
            self._asked_at = now
            self.controller.submit(f"time-limit-{secrets.token_hex(4)}", DumpRanks(at_end=True))
        return bool(to_ask(self._state, since=self._asked_at)) and now - self._asked_at < _ANSWER_S

    def _record_jump(self) -> None:
        """Record that the machine's clock was set. The time of the run continues as before."""
        before, self._lag = self._lag, self._folder.clock.lag()
        if abs(jump := self._lag - before) > _JUMP_S:
            how = f"{format_seconds(abs(jump))} {'ahead' if jump > 0 else 'back'}"
            message = f"the clock of this machine was set {how}, or the machine slept; the times of the run ignore that"
            self._folder.append_event("note", message=message)

    def _watch(self) -> None:
        """Record, in a thread, every node and service that the engine reports as stopped."""
        try:
            for status in self._engine.exits(self._plan):
                node, code = status.node, status.exit_code
                if status.role == "service":
                    words = self._engine.output(self._plan.run, node)
                    self._folder.append_event("service", name=node, phase="ended", exit_code=code, words=words)
                else:
                    self._folder.append_event("node-stopped", node=node, exit_code=code, oom=status.oom_killed)
                self.wake_ups.wake()
        except (ComposesimError, OSError) as error:
            with suppress(
                ComposesimError, OSError
            ):  # the loop ends with this thread, and raises what is wrong with the folder
                self._record_engine_failure(str(error))
            self.wake_ups.wake()

    def _record_engine_failure(self, message: str) -> None:
        self._folder.append_event("stopping", reason="engine", cause="engine", message=message)
