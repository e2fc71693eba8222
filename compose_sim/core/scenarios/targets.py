"""
Make faults of scenario steps, and choose kind, node or rank at random if the step leaves them open.

The same seed gives the same choices on every machine and Python version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.effects import Effect
from compose_sim.core.faults.kind import RunSnapshot
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.faults.parse import find_kind, parse_fault
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.scenario import ANY, FaultSpec, Step
from compose_sim.core.state.state import ClusterState, initial_state
from compose_sim.errors import SpecError

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
