"""Which fault is it this time? A step's own words, with node, rank or kind chosen by chance where the step leaves them open."""

from __future__ import annotations

from typing import Any

from compose_sim.core.faults import KINDS, Scene, load_kind, options_of, target_of
from compose_sim.core.faults.reading import read_fault
from compose_sim.core.interventions import Fault
from compose_sim.core.plan import Plan
from compose_sim.core.scenarios.chance import shuffled
from compose_sim.core.scenarios.scenario import ANY, Breakage, Step
from compose_sim.core.state import ClusterState, initial_state

_UP = ("rendezvous", "starting", "init", "running")


class Chooser:
    """Makes faults of steps, for one plan and one seed."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Everything that is chosen follows from the seed, and from which nodes are up at that moment."""
        self._plan, self._seed = plan, seed

    def has_a_choice(self, step: Step) -> bool:
        """Whether anything is left to chance."""
        fault = step.fault
        return fault is not None and bool(
            step.pick or len(fault.kind) > 1 or ANY in (*fault.kind, *fault.node) or fault.rank == ANY
        )

    def check(self, step: Step) -> None:
        """SpecError where the step's fault, or one that chance may choose, makes no sense for this plan."""
        fault = step.fault
        assert fault is not None
        state = initial_state(self._plan)
        nodes = [node.name for node in self._plan.nodes]
        addresses = {name: f"10.0.0.{number % 250 + 2}" for number, name in enumerate((*nodes, "master"))}
        ranks = {rank.rank: rank.node for rank in state.ranks.values()}
        scene = Scene(plan=self._plan, running=tuple(nodes), addresses=addresses, ranks=ranks)
        for kind in self._kinds(fault):
            made = self._made(kind, step, nodes, ranks, occasion="check")
            load_kind(kind).lower(made, scene)

    def fault(self, step: Step, state: ClusterState, *, busy: set[str], occasion: str) -> Fault | None:
        """The fault of a step at this moment; None where chance finds no node to take. Nodes in `busy` bear a fault already."""
        assert step.fault is not None
        up = [name for name in state.wanted if state.nodes[name].phase in _UP and name not in busy]
        ranks = {rank.rank: rank.node for rank in state.ranks.values() if rank.node in up}
        if self.has_a_choice(step) and not up:
            return None
        kinds = shuffled(self._kinds(step.fault), seed=self._seed, occasion=f"{occasion}/kind")
        return self._made(kinds[0], step, up, ranks, occasion=occasion)

    def nodes_of(self, fault: Fault, state: ClusterState) -> tuple[str, ...]:
        """The nodes that bear a fault."""
        of_rank = state.ranks.get(fault.rank) if fault.rank is not None else None
        return fault.nodes or ((of_rank.node,) if of_rank else ())

    def _kinds(self, fault: Breakage) -> tuple[str, ...]:
        """What the kind may be: those named, or all that this engine can do without being told more."""
        if fault.kind and ANY not in fault.kind:
            return fault.kind
        return tuple(name for name in KINDS if self._needs_no_more(name, fault))

    def _needs_no_more(self, name: str, fault: Breakage) -> bool:
        kind = load_kind(name)
        missing = [key for key, option in options_of(kind).items() if option[1] is ... and key not in fault.options]
        return self._plan.engine in kind.ENGINES and not missing and not kind.NEEDS

    def _made(self, kind: str, step: Step, nodes: list[str], ranks: dict[int, str], *, occasion: str) -> Fault:
        fault = step.fault
        assert fault is not None
        known = (
            options_of(load_kind(kind)) if len(self._kinds(fault)) > 1 else fault.options
        )  # of several, each its own
        options = {key: _text(value) for key, value in fault.options.items() if key in known and key != "groups"}
        words = self._words(kind, step, fault, nodes, ranks, occasion)
        return read_fault(kind, words, options, for_s=fault.for_s, plan=self._plan)

    def _words(
        self, kind: str, step: Step, fault: Breakage, nodes: list[str], ranks: dict[int, str], occasion: str
    ) -> list[str]:
        """What the kind is done to, as a person would type it behind `composesim fault KIND`."""
        target = target_of(load_kind(kind))
        order = shuffled(nodes, seed=self._seed, occasion=occasion)
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


def _text(value: Any) -> Any:
    """As on the command line: a list as one word, a flag as yes or left out."""
    flags = {"true": True, "false": None}
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else flags.get(str(value), str(value))
