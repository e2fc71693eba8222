"""What does a scenario do to a run, and when? Its steps, told as interventions once their moments have come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Fault, Heal, Intervention, Scale, SetLinks
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.scenario import Scenario, Step
from compose_sim.core.scenarios.targets import Chooser
from compose_sim.core.scenarios.triggers import Watch, is_training_over
from compose_sim.core.state.state import ClusterState
from compose_sim.errors import SpecError

# What expectations are judged by; logs and samples of usage are left out, of which there may be millions.
_KEPT = frozenset(
    {
        "started", "round", "metric", "init", "recovered", "fault", "heal", "link", "scale", "refused", "hang", "waited",
        "node-lost", "stopping",
    }
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _Part:
    """A step of the scenario in play."""

    number: int  # from 1
    step: Step
    watch: Watch
    ids: list[str] = field(default_factory=list)
    why_not: str = ""  # why it could not be played when its moment had come


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of one step."""

    number: int  # from 1
    times: int  # how often it was handed over
    refused: str = ""  # why the run, or the player, would not do it
    chosen: bool = False  # whether chance had a part in it


class ScenarioPlayer:
    """Plays one scenario in one run. Pure: it is told the time and what happened, and remembers."""

    def __init__(self, scenario: Scenario, plan: Plan, *, seed: int) -> None:
        """SpecError where a step makes no sense for this plan."""
        self.events: list[Event] = []
        self._plan, self._count = plan, 0
        self._chooser = Chooser(plan, seed)
        self._active: dict[str, tuple[str, ...]] = {}  # faults handed over and not yet healed, with their nodes
        self._unanswered: set[str] = set()  # faults handed over of which nothing has been heard
        self._parts = [
            _Part(number=number, step=step, watch=Watch(step.at)) for number, step in enumerate(scenario.steps, 1)
        ]
        for part in self._parts:
            self._check(part)
        self._arm()

    def due(self, events: list[Event], state: ClusterState, *, now: float) -> list[tuple[str, Intervention]]:
        """The interventions of the steps whose moments have come."""
        self.hear(events)
        if is_training_over(state):
            return []
        handed: list[tuple[str, Intervention]] = []
        for part in self._parts:
            if part.watch.has_come(state, now):
                handed += self._play(part, state, now)
        return handed

    def hear(self, events: list[Event]) -> None:
        """Take note of what happened."""
        for event in events:
            self._see(event)

    def played(self) -> tuple[Played, ...]:
        """What became of each step, so far."""
        refused = {event.data.get("id"): str(event.data.get("message", "")) for event in self._of("refused")}
        return tuple(
            Played(
                number=part.number,
                times=len(part.ids),
                # A turn of `every` at which chance found nothing was passed over; only a step never played says why.
                refused=next((refused[each] for each in part.ids if each in refused), "" if part.ids else part.why_not),
                chosen=self._chooser.has_a_choice(part.step),
            )
            for part in self._parts
        )

    def _of(self, kind: str) -> Iterable[Event]:
        return (event for event in self.events if event.kind == kind)

    def _see(self, event: Event) -> None:
        if event.kind in _KEPT:
            self.events.append(event)
        given = str(event.data.get("id"))
        if event.kind == "refused" or (event.kind == "fault" and event.data.get("phase") == "done"):
            self._unanswered.discard(given)
        over = event.kind == "refused" or (event.kind == "heal" and event.data.get("phase") == "done")
        if over or (event.kind == "fault" and event.data.get("phase") == "done" and not event.data.get("lasts", True)):
            self._active.pop(given, None)
        for part in self._parts:
            part.watch.see(event)

    def _play(self, part: _Part, state: ClusterState, now: float) -> list[tuple[str, Intervention]]:
        busy = {node for nodes in self._active.values() for node in nodes}
        # Chance goes no faster than the machine: else faults would queue up, for nodes that were free when they were chosen.
        waits = part.step.at.every is not None and not self._unanswered.isdisjoint(part.ids)
        what = None if waits else self._intervention(part, state, busy)
        if what is None:  # chance finds nothing to take: wait for a node, or for the next turn
            part.why_not = "there was nothing to choose"
            part.watch.let_pass(state, now)
            return []
        part.watch.take(state, now)
        self._count += 1
        given = f"play-{self._count}"
        part.ids.append(given)
        part.why_not = ""
        if isinstance(what, Fault):
            self._active[given] = self._chooser.nodes_of(what, state)
            self._unanswered.add(given)
        self._arm()
        return [(given, what)]

    def _intervention(self, part: _Part, state: ClusterState, busy: set[str]) -> Intervention | None:
        step = part.step
        if step.fault is not None:
            occasion = f"{part.number}.{part.watch.count + 1}"
            return self._chooser.fault(step, state, busy=busy, occasion=occasion)
        if step.heal is not None:
            return Heal(target="" if step.heal == "all" else step.heal)
        return SetLinks(links=step.link) if step.link is not None else Scale(nodes=step.scale or 1)

    def _arm(self) -> None:
        """An event counts for a step once the step before it has been handed over; what comes again and again holds up nobody."""
        ready = True
        for part in self._parts:
            if ready:
                part.watch.arm()
            ready = part.step.at.every is not None or bool(part.ids)

    def _check(self, part: _Part) -> None:
        """Refuse before the run begins what cannot be done to it."""
        names = [node.name for node in self._plan.nodes]
        rank = part.step.at.rank
        problem = ""
        if rank is not None and rank >= self._plan.world_size:
            problem = f"there is no rank {rank}: ranks are 0 to {self._plan.world_size - 1}"
        for name, other in ((part.step.at.node, "master"), (part.step.heal, "all")):
            if name not in (None, other, *names):
                problem = f"there is no node '{name}': nodes are {names[0]} to {names[-1]}"
        least, most = self._plan.elastic or (len(names), len(names))
        if part.step.scale is not None and not least <= part.step.scale <= most:
            problem = f"scale to {part.step.scale} nodes is not within {least}:{most}, the range of --elastic"
        if problem:
            raise SpecError(f"step {part.number}: {problem}")
        if part.step.fault is not None:
            try:
                self._chooser.check(part.step)
            except SpecError as error:
                raise SpecError(
                    f"step {part.number}: {error.message}", evidence=error.evidence, hint=error.hint
                ) from None
