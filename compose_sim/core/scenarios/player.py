"""Play the steps of a scenario: decide when each is due, choose the targets that it leaves open, and return its interventions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.faults.commands import Fault, Heal, Intervention, Scale, SetLinks
from compose_sim.core.faults.kind import Effect, RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.faults.parse import find_kind, parse_fault
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.scenario import ANY, FaultSpec, Scenario, Step, TriggerSpec
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.errors import SpecError


def steps_made(state: ClusterState, rank: int) -> int:
    """
    Return how many steps training has made: the largest step that any rank has printed, or that this rank has counted.

    All ranks make the same steps, so a line of one rank holds for all. A rank starts counting again in each round. If one
    program drives all nodes, the lines of that program count.
    """
    of_rank = state.ranks.get(rank)
    printed = [value.metric.get("step") for value in state.ranks.values()]
    printed += [state.driver.step] if state.driver else []
    return max([of_rank.step or 0 if of_rank else 0, *(step for step in printed if isinstance(step, int))])


def is_training_over(state: ClusterState) -> bool:
    """Whether a script has ended successfully, or the run is being stopped."""
    driven_to_its_end = state.driver is not None and state.driver.phase == "ended"
    return bool(state.stopping) or driven_to_its_end or any(each.script_exit_code == 0 for each in state.ranks.values())


class Trigger:
    """Fires once, or repeatedly, as `at` of a step says."""

    def __init__(self, at: TriggerSpec) -> None:
        self.at = at
        self.count = 0  # how often the step was played
        self._armed = False
        self._last_turn = 0
        self._seen_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it cannot fire again."""
        return self.count >= (1 if self.at.every is None else self.at.times or float("inf"))

    def arm(self) -> None:
        """Let events count from now on, because the step before was played."""
        self._armed = True

    def observe(self, event: Event) -> None:
        """Take note of an event of the run."""
        at = self.at
        if self._armed and self._seen_at is None and event.kind == at.event:
            node = event.node or event.data.get("node")  # that wrote the event, or that the master means
            is_meant = at.node in (None, node) and at.rank in (None, event.rank)
            if is_meant and at.world_size in (None, event.data.get("world_size")):
                self._seen_at = event.t

    def fires(self, state: ClusterState, now: float) -> bool:
        """Whether the step is due. Stays true until `consume`, or until the turn of `every` is over."""
        at, since_start = self.at, now - (state.started_at if state.started_at is not None else now)
        if self.is_over:
            return False
        if at.time is not None:
            return since_start >= at.time
        if at.step is not None:
            return steps_made(state, at.rank or 0) >= at.step
        if at.event is not None:
            return self._seen_at is not None and now >= self._seen_at + (at.after or 0.0)
        assert at.every is not None
        return self._turn(since_start) > self._last_turn and since_start < (at.until or float("inf"))

    def consume(self, state: ClusterState, now: float) -> None:
        """Count the step as played."""
        self.count += 1
        self.skip(state, now)

    def skip(self, state: ClusterState, now: float) -> None:
        """Wait for the next turn of `every`, because the step cannot be played. Other triggers continue to fire."""
        if state.started_at is not None:
            self._last_turn = self._turn(now - state.started_at)

    def _turn(self, since_start: float) -> int:
        return int(since_start / self.at.every) if self.at.every else 0


_UP = ("starting", "init", "running")  # in a round: before the rendezvous there is nothing to recover


class FaultChooser:
    """Makes faults of steps, for one plan and one seed."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Create a chooser. The choices depend only on the seed and on which nodes are up at the time."""
        self._plan, self._seed = plan, seed
        ranks = {rank.rank: rank.node for rank in initial_state(plan).ranks.values()}
        # A run without failures: a fault that is invalid here is always invalid.
        self._healthy_run = RunSnapshot(plan=plan, running=tuple(node.name for node in plan.nodes), ranks=ranks)

    def has_a_choice(self, step: Step) -> bool:
        """Whether the step has a random choice."""
        fault = step.fault
        return fault is not None and bool(
            step.pick or len(fault.kind) > 1 or ANY in (*fault.kind, *fault.node) or fault.rank == ANY
        )

    def check(self, step: Step) -> None:
        """Raise SpecError if the fault of a step, or one that may be chosen, is invalid for this plan."""
        fault = step.fault
        assert fault is not None
        for kind in self._kinds(step):
            lasts = self._effect_in_health(kind, step).lasts
            if fault.for_s is not None and not lasts and not self.has_a_choice(step):
                raise SpecError(f"'{kind}' is instantaneous; 'for' does not apply", hint="leave out 'for'")

    def fault(self, step: Step, state: ClusterState, *, busy: set[str], occasion: str) -> Fault | None:
        """Return the fault of a step now; None if nothing can be chosen. Nodes in `busy` already have a fault."""
        assert step.fault is not None
        if not self.has_a_choice(step):
            return self._made(step.fault.kind[0], step, [], {}, occasion)
        up = [name for name in state.wanted if state.nodes[name].phase in _UP and name not in busy]
        ranks = {rank.rank: rank.node for rank in state.ranks.values() if rank.node in up and rank.phase == "running"}
        kind = self._shuffled(self._kinds(step), f"{occasion}/kind")[0]
        try:
            made = self._made(kind, step, up, ranks, occasion)
            lasts = find_kind(kind).effect(made, self._healthy_run).lasts
        except SpecError:  # too few nodes are up for this kind
            return None
        return made if lasts else replace(made, for_s=None)  # the other kinds of the step last

    def nodes_of(self, fault: Fault, state: ClusterState) -> tuple[str, ...]:
        """Return the nodes that a fault is on."""
        of_rank = state.ranks.get(fault.rank) if fault.rank is not None else None
        return fault.nodes or ((of_rank.node,) if of_rank else ())

    def _kinds(self, step: Step) -> tuple[str, ...]:
        """Return the kinds to choose from: those of the step, or all that need no further options in this run."""
        fault = step.fault
        assert fault is not None
        if fault.kind and ANY not in fault.kind:
            return fault.kind
        return tuple(name for name in KINDS if self._can_do(name, step))

    def _can_do(self, name: str, step: Step) -> bool:
        kind = find_kind(name)
        if kind.needs:  # the host may not support it
            return False
        try:
            self._effect_in_health(name, step)
        except SpecError:
            return False
        return True

    def _effect_in_health(self, kind: str, step: Step) -> Effect:
        run = self._healthy_run
        return find_kind(kind).effect(self._made(kind, step, [*run.running], {**run.ranks}, "check"), run)

    def _made(self, kind: str, step: Step, nodes: list[str], ranks: dict[int, str], occasion: str) -> Fault:
        fault = step.fault
        assert fault is not None
        several = ANY in fault.kind or len(fault.kind) != 1
        known = find_kind(kind).options if several else fault.options  # each kind takes the options that it knows
        options = {key: _text(value) for key, value in fault.options.items() if key in known and key != "groups"}
        arguments = self._arguments(kind, step, fault, nodes, ranks, occasion)
        return parse_fault(kind, arguments, options, for_s=fault.for_s, plan=self._plan)

    def _arguments(
        self, kind: str, step: Step, fault: FaultSpec, nodes: list[str], ranks: dict[int, str], occasion: str
    ) -> list[str]:
        """Return the arguments of `composesim fault KIND`."""
        target = find_kind(kind).target
        order = self._shuffled(nodes, occasion)
        if target == "nodes":
            return order[:1] if ANY in fault.node or (step.pick and not fault.node) else [*fault.node]
        if target == "rank":
            if fault.rank not in (None, ANY):
                return [str(fault.rank)]
            of_nodes = [rank for name in order for rank, node in ranks.items() if node == name]
            return [str(of_nodes[0])] if of_nodes and self.has_a_choice(step) else []
        if target == "groups":
            groups = fault.options.get("groups")
            half = len(order) // 2
            halves = [",".join(sorted(part)) for part in (order[:half], order[half:]) if part]
            return [_text(group) for group in groups] if groups else halves if self.has_a_choice(step) else []
        return []

    def _shuffled(self, names: Iterable[str], occasion: str) -> list[str]:
        """
        Return the names in an order that depends only on seed and occasion. The choice is the first one that is valid.

        A name that is not valid on one occasion therefore does not change the choices on others.
        """
        return sorted(names, key=lambda name: sha256(f"{self._seed}/{occasion}/{name}".encode()).digest())


def _text(value: Any) -> Any:
    """Return a value as on the command line: a list as one word, a flag as a text or None."""
    flags = {"true": True, "false": None}
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else flags.get(str(value), str(value))


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
