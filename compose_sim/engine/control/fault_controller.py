"""Execute the interventions of a run, one after another, in a thread of the process that runs the cluster.

This includes timers: a fault with `--for` is healed here. The results are events of the run. Only this module knows which
faults are active.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice

from compose_sim.core.events.events import Event
from compose_sim.core.faults.active import compile_fault, faults_to_heal, healed_by_start, scaled_nodes
from compose_sim.core.faults.commands import DumpRanks, Fault, Heal, Intervention, ProfileSteps, Scale, SetLinks
from compose_sim.core.faults.kind import Action, Effect, Pause, RunSnapshot, Signal, Start
from compose_sim.core.faults.record import record_of_effect
from compose_sim.core.network.links import check_links, merged
from compose_sim.core.network.node_network import NetworkFault
from compose_sim.core.plan.model import Plan
from compose_sim.engine.control.node_actions import NodeActions
from compose_sim.engine.docker.network import Networks
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.control_requests import ControlRequests, ExpectedLosses
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError, EngineError, SpecError

_POLL_S = 0.05  # the longest time until a new request is seen
_MAX_WAITING = 50  # requests that are queued at a time; a node of the local engine can write thousands


class FaultController:
    """Executes the interventions of one run, from start to end."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder) -> None:
        """Apply the links of the plan to the nodes, which have been started, and begin to take requests."""
        self._plan, self._engine, self._folder = plan, engine, folder
        self._losses, self._requests = ExpectedLosses(folder.path), ControlRequests(folder)
        self._actions, self._networks = NodeActions(plan, engine, folder), Networks(plan, engine)
        self._queue: deque[tuple[str, Intervention | None, str | None]] = deque()
        self._active: dict[str, Effect] = {}
        self._heal_at: dict[str, float] = {}  # id of a fault -> monotonic seconds at which its `--for` ends
        self._wanted = tuple(node.name for node in plan.initial_nodes)
        self._links = plan.links
        self._ranks: dict[int, str] = {rank: node.name for node in plan.nodes for rank in node.ranks}
        self._networks.apply(self._links)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="fault-controller", daemon=True)
        self._thread.start()

    def submit(self, request: str, intervention: Intervention) -> None:
        """Queue an intervention; its events have the id `request`."""
        self._queue.append((request, intervention, None))
        self._wake.set()

    def observe(self, events: list[Event]) -> None:
        """Take note of new events of the run. Must also be called regularly if there are none."""
        self._losses.observe(events)
        self._actions.observe(events)
        nproc = {node.name: node.nproc for node in self._plan.nodes}
        for event in events:
            if event.kind == "round":  # its nodes are in the order of their ranks
                nodes = event.data.get("nodes") or ()
                self._ranks = dict(enumerate(name for name in nodes for _ in range(nproc.get(name, 0))))

    def cancel(self) -> None:
        """Begin nothing more, and wait for no node; a call to the engine that is in progress continues."""
        self._closing.set()
        self._actions.cancel()
        self._wake.set()

    def is_busy(self) -> bool:
        """Whether `close` would block."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop, refuse pending requests, and let go of all nodes that are stopped or frozen, so that they can end. Idempotent."""
        self.cancel()
        self._thread.join()
        self._take_requests()
        while self._queue:
            request, intervention, file = self._queue.popleft()
            if file or not isinstance(intervention, DumpRanks):  # nobody waits for what the time limit asks any more
                self._refuse(
                    request, EngineError("the run is ending", hint=f"composesim report --run {self._plan.run}")
                )
            self._acknowledge(file)
        if self._active:
            with suppress(ComposesimError):
                self._actions.refresh()
                for identity, effect in reversed(self._active.items()):
                    self._actions.try_all(effect.revert, identity)
            self._active.clear()

    # The thread

    def _work(self) -> None:
        while not self._closing.is_set():
            self._take_requests()
            now = time.monotonic()
            due = min(self._heal_at, key=self._heal_at.__getitem__, default=None)
            if due is not None and self._heal_at[due] <= now:
                del self._heal_at[due]
                self._guarded(f"heal-of-{due}", partial(self._heal, [due]))
            elif self._queue:
                request, intervention, file = self._queue.popleft()
                self._guarded(request, partial(self._execute, request, intervention))
                self._acknowledge(file)
            else:
                self._wake.wait(_POLL_S if due is None else min(_POLL_S, self._heal_at[due] - now))
                self._wake.clear()

    def _acknowledge(self, file: str | None) -> None:
        if file:
            with suppress(OSError, ComposesimError):  # gone, or not a file
                self._folder.files.remove(file)

    def _take_requests(self) -> None:
        try:
            new = self._requests.new() if len(self._queue) < _MAX_WAITING else ()
            for request, file, intervention in islice(new, _MAX_WAITING):
                self._queue.append((request, intervention, file))
        except Exception as error:  # noqa: BLE001 - as in _guarded
            self._refuse("requests", error)

    def _guarded(self, request: str, execute: Callable[[], None]) -> None:
        try:
            self._actions.refresh()
            execute()
        except Exception as error:  # noqa: BLE001 - a bug here must not leave other requests without an answer
            self._refuse(request, error)

    def _execute(self, request: str, intervention: Intervention | None) -> None:
        if isinstance(intervention, Fault):
            self._inject(request, intervention)
        elif isinstance(intervention, Heal):
            self._heal(faults_to_heal(intervention, self._active, self._plan))
        elif isinstance(intervention, Scale):
            self._scale(request, intervention)
        elif isinstance(intervention, SetLinks):
            self._set_links(request, intervention)
        elif isinstance(intervention, ProfileSteps):
            self._actions.ask_all("profile", asdict(intervention), request)
        elif isinstance(intervention, DumpRanks):
            self._actions.ask_all("dump", {"at_end": intervention.at_end}, request)
        else:
            raise SpecError(f"'{request}' is not a valid request")

    def _inject(self, request: str, fault: Fault) -> None:
        run = RunSnapshot(plan=self._plan, running=self._actions.running, ranks=self._ranks)
        effect = compile_fault(fault, run, self._active)
        if effect.network:
            self._networks.check(self._links, [*self._network_faults(), effect.network])
        record = record_of_effect(request, effect)
        previous = self._losses.expect(effect.loses)
        self._folder.append_event("fault", record.event_data("begun"))
        try:
            for action in effect.apply:
                self._act(action, request)
            if effect.network:
                self._networks.apply(self._links, [*self._network_faults(), effect.network])
        except Exception:
            self._roll_back(request, effect)
            self._losses.restore(previous)
            raise
        self._folder.append_event("fault", record.event_data("done"))
        if effect.lasts:
            self._active[request] = effect
            if effect.fault.for_s is not None:
                self._heal_at[request] = time.monotonic() + effect.fault.for_s
        else:
            self._expect_back(effect.loses, started=any(isinstance(action, Start) for action in effect.apply))

    def _roll_back(self, request: str, effect: Effect) -> None:
        """Revert a fault that failed halfway."""
        self._actions.try_all(effect.revert, request)
        if effect.network:
            with suppress(ComposesimError, OSError):
                self._networks.apply(self._links, self._network_faults())

    def _heal(self, ids: Iterable[str]) -> None:
        """Heal each of these faults. One that cannot be healed stays active; the others are still healed."""
        errors: list[Exception] = []
        for identity in ids:
            effect = self._active.pop(identity, None)
            if effect is None:
                continue
            try:
                self._revert(identity, effect)
            except Exception as error:  # noqa: BLE001 - raised below
                self._active[identity] = effect
                errors.append(error)
        if errors:
            raise errors[0]

    def _revert(self, identity: str, effect: Effect) -> None:
        self._folder.append_event("heal", id=identity, phase="begun")
        starts = {action.node for action in effect.revert if isinstance(action, Start)}
        for action in effect.revert:
            if action.node not in starts or action.node in self._wanted:
                self._act(action, identity)
        if effect.network:
            self._networks.apply(self._links, self._network_faults())
        self._expect_back(effect.loses, started=bool(starts))
        self._heal_at.pop(identity, None)
        self._folder.append_event("heal", id=identity, phase="done")

    def _scale(self, request: str, scale: Scale) -> None:
        before, names = self._wanted, scaled_nodes(scale, self._plan, self._wanted)
        leaving = [name for name in before if name not in names]
        joining = [name for name in names if name not in before]
        previous = self._losses.expect(leaving)
        self._want(request, names)
        changed: list[str] = []
        try:
            for node in leaving:
                self._shut_down(node, request)
                changed.append(node)
            for node in joining:
                changed.append(node)
                self._act(Start(node=node), request)
        except Exception:
            self._want(request, before)
            self._losses.restore({node: was for node, was in previous.items() if node not in changed})
            self._scale_back(changed, request)
            raise

    def _want(self, request: str, names: tuple[str, ...]) -> None:
        """Announce which nodes take part, before any of them joins or leaves, so that no loss counts as a failure."""
        self._wanted = names
        self._folder.append_event("scale", id=request, nodes=len(names), names=list(names))

    def _shut_down(self, node: str, request: str) -> None:
        for identity, effect in self._active.items():
            for action in effect.revert:
                # A node that is stopped or frozen would not react to SIGTERM.
                if action.node == node and isinstance(action, Signal | Pause):
                    self._act(action, identity)
        self._act(Signal(node=node, name="TERM"), request)

    def _scale_back(self, changed: Iterable[str], request: str) -> None:
        """Undo a failed change of size as far as possible."""
        for node in changed:
            with suppress(ComposesimError, OSError):
                if node in self._wanted:
                    self._act(Start(node=node), request)
                else:
                    self._losses.expect([node])
                    self._shut_down(node, request)

    def _set_links(self, request: str, change: SetLinks) -> None:
        check_links(change.links, [node.name for node in self._plan.nodes])
        links = merged(self._links, change.links)
        self._networks.apply(links, self._network_faults())
        self._links = links
        self._folder.append_event(
            "link", id=request, links=list(links), text=", ".join(change.links) or "all links plain"
        )

    def _act(self, action: Action, cause: str) -> None:
        self._actions.execute(action, cause)
        if isinstance(action, Start):
            self._networks.apply(self._links, self._network_faults())  # the node has a new network namespace
            self._heal(healed_by_start(action.node, self._active, self._actions.running))
            self._expect_back([action.node], started=True)

    def _expect_back(self, nodes: Iterable[str], *, started: bool) -> None:
        """Expect these nodes to be back soon, except those that another fault holds or that no longer take part."""
        held = {node for effect in self._active.values() for node in effect.loses}
        self._losses.returning((node for node in nodes if node in self._wanted and node not in held), started=started)

    def _network_faults(self) -> list[NetworkFault]:
        return [effect.network for effect in self._active.values() if effect.network]

    def _refuse(self, request: str, error: Exception) -> None:
        known = error if isinstance(error, ComposesimError) else EngineError(f"{type(error).__name__}: {error}")
        details = {name: getattr(known, name) for name in ("message", "evidence", "hint", "exit_code")}
        with suppress(OSError, EngineError):  # a script has deleted or replaced the folder, which the loop reports
            self._folder.append_event("refused", {"id": request, **details})
