"""Play the steps of a scenario: return their interventions when their triggers fire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Fault, Heal, Intervention, Scale, SetLinks
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.scenario import Scenario, Step
from compose_sim.core.scenarios.targets import FaultChooser
from compose_sim.core.scenarios.triggers import Trigger, is_training_over
from compose_sim.core.state.state import ClusterState
from compose_sim.errors import SpecError

# Kept for the expectations. Log lines and samples of usage are left out: there may be millions.
_KEPT = frozenset(
    {
        "started", "round", "metric", "init", "recovered", "fault", "heal", "link", "scale", "refused", "hang", "waited",
        "node-lost", "stopping",
    }
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _PlayedStep:
    """A step, and how far it has been played."""

    number: int  # from 1
    step: Step
    trigger: Trigger
    ids: list[str] = field(default_factory=list)  # of the interventions
    why_not: str = ""  # why it could not be played when the trigger fired


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The outcome of one step."""

    number: int  # from 1
    times: int  # how often it was played
    refused: str = ""  # why the run, or the player, refused it
    chosen: bool = False  # whether it has a random choice


class ScenarioPlayer:
    """Plays one scenario in one run."""

    def __init__(self, scenario: Scenario, plan: Plan, *, seed: int) -> None:
        """Raise SpecError if a step is invalid for this plan."""
        self.events: list[Event] = []
        self._plan, self._count = plan, 0
        self._chooser = FaultChooser(plan, seed)
        self._active: dict[str, tuple[str, ...]] = {}  # id -> nodes of each fault that is not healed yet
        self._pending: set[str] = set()  # ids of the faults that have not been injected or refused yet
        self._steps = [
            _PlayedStep(number=number, step=step, trigger=Trigger(step.at))
            for number, step in enumerate(scenario.steps, 1)
        ]
        for each in self._steps:
            self._check(each)
        self._arm()

    def due(self, events: list[Event], state: ClusterState, *, now: float) -> list[tuple[str, Intervention]]:
        """Return the interventions of the steps whose triggers fire now."""
        self.observe(events)
        if is_training_over(state):
            return []
        return [made for each in self._steps if each.trigger.fires(state, now) for made in self._play(each, state, now)]

    def observe(self, events: list[Event]) -> None:
        """Take note of new events."""
        for event in events:
            if event.kind in _KEPT:
                self.events.append(event)
            self._update_faults(event)
            for each in self._steps:
                each.trigger.observe(event)

    def outcomes(self) -> tuple[StepOutcome, ...]:
        """Return the outcome of each step so far."""
        refused = {
            event.data.get("id"): str(event.data.get("message", "")) for event in self.events if event.kind == "refused"
        }
        return tuple(
            StepOutcome(
                number=each.number,
                times=len(each.ids),
                # A turn of `every` without a valid choice is skipped. Only a step that was never played says why.
                refused=next((refused[id_] for id_ in each.ids if id_ in refused), "" if each.ids else each.why_not),
                chosen=self._chooser.has_a_choice(each.step),
            )
            for each in self._steps
        )

    def _update_faults(self, event: Event) -> None:
        done = event.data.get("phase") == "done"
        injected = event.kind == "fault" and done
        over = (event.kind == "heal" and done) or (injected and not event.data.get("lasts", True))
        if event.kind == "refused" or injected:
            self._pending.discard(str(event.data.get("id")))
        if event.kind == "refused" or over:
            self._active.pop(str(event.data.get("id")), None)

    def _play(self, played: _PlayedStep, state: ClusterState, now: float) -> Iterable[tuple[str, Intervention]]:
        # Wait until the last fault was injected. Otherwise faults would queue up for nodes that were free when chosen.
        waits = played.step.at.every is not None and not self._pending.isdisjoint(played.ids)
        intervention = None if waits else self._intervention(played, state)
        if intervention is None:
            played.why_not = "no valid choice was left"
            played.trigger.skip(state, now)
            return
        played.trigger.consume(state, now)
        self._count += 1
        identity = f"play-{self._count}"
        played.ids.append(identity)
        played.why_not = ""
        if isinstance(intervention, Fault):
            self._active[identity] = self._chooser.nodes_of(intervention, state)
            self._pending.add(identity)
        self._arm()
        yield identity, intervention

    def _intervention(self, played: _PlayedStep, state: ClusterState) -> Intervention | None:
        step = played.step
        if step.fault is not None:
            busy = {node for nodes in self._active.values() for node in nodes}
            occasion = f"{played.number}.{played.trigger.count + 1}"
            return self._chooser.fault(step, state, busy=busy, occasion=occasion)
        if step.heal is not None:
            return Heal(target="" if step.heal == "all" else step.heal)
        return SetLinks(links=step.link) if step.link is not None else Scale(nodes=step.scale or 1)

    def _arm(self) -> None:
        """Let events trigger a step once the step before it was played. A step with `every` does not hold up the next one."""
        ready = True
        for each in self._steps:
            if ready:
                each.trigger.arm()
            ready = each.step.at.every is not None or bool(each.ids)

    def _check(self, played: _PlayedStep) -> None:
        """Raise SpecError for a step that the run cannot execute."""
        names = [node.name for node in self._plan.nodes]
        step, rank = played.step, played.step.at.rank
        problem = ""
        if rank is not None and rank >= self._plan.world_size:
            problem = f"there is no rank {rank}: ranks are 0 to {self._plan.world_size - 1}"
        for name, other in ((step.at.node, "master"), (step.heal, "all")):
            if name not in (None, other, *names):
                problem = f"there is no node '{name}': nodes are {names[0]} to {names[-1]}"
        least, most = self._plan.elastic or (len(names), len(names))
        if step.scale is not None and not least <= step.scale <= most:
            problem = f"cannot scale to {step.scale} nodes: the range of --elastic is {least}:{most}"
        if problem:
            raise SpecError(f"step {played.number}: {problem}")
        if step.fault is not None:
            try:
                self._chooser.check(step)
            except SpecError as error:
                message = f"step {played.number}: {error.message}"
                raise SpecError(message, evidence=error.evidence, hint=error.hint) from None
