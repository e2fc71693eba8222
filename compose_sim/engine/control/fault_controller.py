"""Who performs interventions? One thread of the process that runs the cluster: in order, timers included, never twice at a time.

What it did stands in the run's events; what is broken at a moment is known here alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from compose_sim.core.events.events import Event
from compose_sim.core.faults import Act, Lowered, Pause, Scene, Signal, Start
from compose_sim.core.faults.active import Ongoing, faults_to_heal, lower_fault, lower_scale, over_by_start
from compose_sim.core.faults.commands import Fault, Heal, Intervention, Relink, Scale
from compose_sim.core.network.links import check_links, merged
from compose_sim.core.network.node_network import NetworkFault
from compose_sim.core.plan.model import Plan
from compose_sim.engine.control.node_actions import Acting
from compose_sim.engine.docker.network import Networks
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.control_requests import Requests
from compose_sim.engine.run_folder.expected_losses import Marks
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError, EngineError, SpecError

_LOOK_S = 0.05  # how long a request waits at most before it is seen


class Performer:
    """The interventions of one run, from its start to its end."""

    def __init__(self, plan: Plan, engine: Engine, folder: RunFolder) -> None:
        """The nodes have been started: their links get the shape that the plan asks for, now."""
        self._plan, self._engine, self._folder = plan, engine, folder
        self._marks, self._requests = Marks(folder.path), Requests(folder)
        self._acting, self._networks = Acting(plan, engine, folder), Networks(plan, engine)
        self._queue: deque[tuple[str, Intervention | None, Path | None]] = deque()
        self._ongoing: dict[str, Ongoing] = {}
        self._ends: dict[str, float] = {}  # id of a fault -> monotonic seconds: healed by itself then
        self._wanted = tuple(node.name for node in plan.initial_nodes)
        self._links = plan.links
        self._ranks: dict[int, str] = {rank: node.name for node in plan.nodes for rank in node.ranks}
        self._networks.apply(self._links)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="performer", daemon=True)
        self._thread.start()

    def submit(self, request: str, intervention: Intervention) -> None:
        """Perform this when it is its turn; its events bear the id `request`."""
        self._queue.append((request, intervention, None))
        self._wake.set()

    def hear(self, events: list[Event]) -> None:
        """What is new in the run; to be called after each look at it."""
        self._marks.hear(events)
        self._acting.hear(events)
        for event in events:
            if event.kind == "round":
                self._ranks = _ranks_in(self._plan, event.data.get("nodes") or ())

    def give_up(self) -> None:
        """Begin nothing more, and wait for no node; what is under way with the engine goes on."""
        self._closing.set()
        self._acting.give_up()
        self._wake.set()

    def is_at_work(self) -> bool:
        """Whether `close` would have to wait for what is under way."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Perform nothing more, refuse what waits, and let go of all nodes that are held, so that they can end. Once is enough."""
        self.give_up()
        self._thread.join()
        self._take()
        while self._queue:
            request, _, file = self._queue.popleft()
            self._refuse(request, EngineError("the run is ending", hint=f"composesim report --run {self._plan.run}"))
            _dealt_with(file)
        if self._ongoing:
            with suppress(ComposesimError):
                self._acting.look()
                for each in reversed(self._ongoing.values()):
                    self._acting.let_go(each.lowered.undo, each.id)
            self._ongoing.clear()

    # The thread

    def _work(self) -> None:
        while not self._closing.is_set():
            self._take()
            now = time.monotonic()
            due = min(self._ends, key=self._ends.__getitem__, default=None)
            if due is not None and self._ends[due] <= now:
                del self._ends[due]
                self._guarded(f"heal-of-{due}", partial(self._heal, [due]))
            elif self._queue:
                request, intervention, file = self._queue.popleft()
                self._guarded(request, partial(self._perform, request, intervention))
                _dealt_with(file)
            else:
                self._wake.wait(_LOOK_S if due is None else min(_LOOK_S, self._ends[due] - now))
                self._wake.clear()

    def _take(self) -> None:
        try:
            for request, file, intervention in self._requests.new():
                self._queue.append((request, intervention, file))
        except Exception as error:  # noqa: BLE001 - as in _guarded
            self._refuse("requests", error)

    def _guarded(self, request: str, act: Callable[[], None]) -> None:
        try:
            self._acting.look()
            act()
        except Exception as error:  # noqa: BLE001 - a bug of ours must not keep others waiting for their answers
            self._refuse(request, error)

    def _perform(self, request: str, intervention: Intervention | None) -> None:
        if isinstance(intervention, Fault):
            self._begin(request, intervention)
        elif isinstance(intervention, Heal):
            self._heal(faults_to_heal(intervention, self._ongoing, self._plan))
        elif isinstance(intervention, Scale):
            self._scale(request, intervention)
        elif isinstance(intervention, Relink):
            self._relink(request, intervention)
        else:
            raise SpecError(f"'{request}' is no intervention that is known here")

    def _begin(self, request: str, fault: Fault) -> None:
        scene = Scene(plan=self._plan, running=self._acting.running, ranks=self._ranks)
        lowered = lower_fault(fault, scene, self._ongoing.values())
        if lowered.network:
            self._networks.check(self._links, [*self._network_faults(), lowered.network])
        marks = self._marks.add(lowered.loses)
        self._tell_fault(request, fault, lowered, "begun")
        try:
            for act in lowered.do:
                self._act(act, request)
            if lowered.network:
                self._networks.apply(self._links, [*self._network_faults(), lowered.network])
        except Exception:
            self._take_back(request, lowered)
            self._marks.restore(marks)
            raise
        self._tell_fault(request, fault, lowered, "done")
        if lowered.lasts:
            self._ongoing[request] = Ongoing(id=request, fault=fault, lowered=lowered)
            if fault.for_s is not None:
                self._ends[request] = time.monotonic() + fault.for_s
        else:
            self._unmark(lowered.loses, started=any(isinstance(act, Start) for act in lowered.do))

    def _take_back(self, request: str, lowered: Lowered) -> None:
        """A fault that could not be begun: as if nothing had been."""
        self._acting.let_go(lowered.undo, request)
        if lowered.network:
            with suppress(ComposesimError, OSError):
                self._networks.apply(self._links, self._network_faults())

    def _heal(self, ids: Iterable[str]) -> None:
        """Undo each of these; one that cannot be undone stays, and keeps no other from being."""
        errors: list[Exception] = []
        for name in ids:
            each = self._ongoing.pop(name, None)
            if each is None:
                continue
            try:
                self._undo(each)
            except Exception as error:  # noqa: BLE001 - raised below
                self._ongoing[name] = each
                errors.append(error)
        if errors:
            raise errors[0]

    def _undo(self, each: Ongoing) -> None:
        self._folder.append_event("heal", id=each.id, phase="begun")
        starts = {act.node for act in each.lowered.undo if isinstance(act, Start)}
        for act in each.lowered.undo:
            if act.node not in starts or act.node in self._wanted:
                self._act(act, each.id)
        if each.lowered.network:
            self._networks.apply(self._links, self._network_faults())
        self._unmark(each.lowered.loses, started=bool(starts))
        self._ends.pop(each.id, None)
        self._folder.append_event("heal", id=each.id, phase="done")

    def _scale(self, request: str, scale: Scale) -> None:
        before, names = self._wanted, lower_scale(scale, self._plan, self._wanted)
        leaving = [name for name in before if name not in names]
        coming = [name for name in names if name not in before]
        marks = self._marks.add(leaving)
        self._want(request, names)
        changed: list[str] = []
        try:
            for node in leaving:
                self._leave(node, request)
                changed.append(node)
            for node in coming:
                changed.append(node)
                self._act(Start(node=node), request)
        except Exception:
            self._want(request, before)
            self._marks.restore({node: was for node, was in marks.items() if node not in changed})
            self._scale_back(changed, request)
            raise

    def _want(self, request: str, names: tuple[str, ...]) -> None:
        """These take part from now on; told before any of them comes or goes, so that it is nobody's failure."""
        self._wanted = names
        self._folder.append_event("scale", id=request, nodes=len(names), names=list(names))

    def _leave(self, node: str, request: str) -> None:
        for each in self._ongoing.values():
            for act in each.lowered.undo:
                if act.node == node and isinstance(act, Signal | Pause):  # one that is held would not hear it
                    self._act(act, each.id)
        self._act(Signal(node=node, name="TERM"), request)

    def _scale_back(self, changed: Iterable[str], request: str) -> None:
        """A change of size that could not be done: those that left come back, those that came leave, as far as can be."""
        for node in changed:
            with suppress(ComposesimError, OSError):
                if node in self._wanted:
                    self._act(Start(node=node), request)
                else:
                    self._marks.add([node])
                    self._leave(node, request)

    def _relink(self, request: str, relink: Relink) -> None:
        check_links(relink.links, [node.name for node in self._plan.nodes])
        links = merged(self._links, relink.links)
        self._networks.apply(links, self._network_faults())
        self._links = links
        self._folder.append_event(
            "link", id=request, links=list(links), text=", ".join(relink.links) or "all links plain"
        )

    def _act(self, act: Act, cause: str) -> None:
        self._acting.do(act, cause)
        if isinstance(act, Start):
            self._networks.apply(self._links, self._network_faults())  # its network is a new one
            self._heal(over_by_start(act.node, self._ongoing, self._acting.running))
            self._unmark([act.node], started=True)

    def _unmark(self, nodes: Iterable[str], *, started: bool) -> None:
        """These are back, or on their way, but for those that another fault holds or that take no part any more."""
        held = {node for each in self._ongoing.values() for node in each.lowered.loses}
        self._marks.returning((node for node in nodes if node in self._wanted and node not in held), started=started)

    def _network_faults(self) -> list[NetworkFault]:
        return [each.lowered.network for each in self._ongoing.values() if each.lowered.network]

    # What is told

    def _tell_fault(self, request: str, fault: Fault, lowered: Lowered, phase: str) -> None:
        about = {
            "id": request,
            "kind": fault.kind,
            "nodes": list(fault.nodes),
            "rank": fault.rank,
            "for_s": fault.for_s,
        }
        meant = {"text": lowered.text, "loses": list(lowered.loses), "lasts": lowered.lasts}
        self._folder.append_event("fault", {**about, **meant, "phase": phase})

    def _refuse(self, request: str, error: Exception) -> None:
        known = error if isinstance(error, ComposesimError) else EngineError(f"{type(error).__name__}: {error}")
        told = {"message": known.message, "evidence": known.evidence, "hint": known.hint, "exit_code": known.exit_code}
        with suppress(OSError):  # the folder has been deleted
            self._folder.append_event("refused", {"id": request, **told})


def _ranks_in(plan: Plan, nodes: Iterable[str]) -> dict[int, str]:
    """Which rank is on which node, in a round of these nodes, in their order."""
    nproc = {node.name: node.nproc for node in plan.nodes}
    return dict(enumerate(name for name in nodes for _ in range(nproc.get(name, 0))))


def _dealt_with(file: Path | None) -> None:
    if file:
        with suppress(OSError):  # gone, or nothing that a shell has written
            file.unlink()
