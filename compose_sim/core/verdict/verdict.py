"""Decide whether a run is over, whether it passed, and what went wrong first if it did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from compose_sim.core.state.fault_attribution import active_faults, is_due_back, is_excused
from compose_sim.core.state.state import GAP, ClusterState, Failure
from compose_sim.core.verdict.root_cause import blame_fault, first_cause

VerdictWord = Literal["passed", "failed", "inconclusive", "hung", "timeout", "interrupted"]
EXIT_CODES: dict[VerdictWord, int] = {
    "passed": 0,
    "failed": 1,
    "inconclusive": 3,
    "hung": 124,
    "timeout": 124,
    "interrupted": 130,
}
_STOPPED: dict[str, VerdictWord] = {
    "interrupted": "interrupted",
    "timeout": "timeout",
    "hang": "hung",
    "engine": "inconclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a run ended: the word, the exit code of `up`, and the first failure."""

    word: VerdictWord
    cause: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The exit status of `up` and `wait`."""
        return EXIT_CODES[self.word]


def is_over(state: ClusterState) -> bool:
    """
    Return whether every node that takes part has ended for good.

    While the master lives, a node that is expected back has not: it would begin a new round. Once the master has ended the run,
    nothing waits for nodes that an elastic run continued without, or that a fault holds.
    """
    names = _counted(state)
    if not all(state.nodes[name].phase == "exited" for name in names):
        return False
    nothing_to_join = state.stopping or state.outcome is not None or state.master_stopped_at is not None
    return bool(nothing_to_join) or not any(is_due_back(state, name) for name in names)


def judge(state: ClusterState, outputs: Mapping[str, str] | None = None) -> Verdict:
    """Return the verdict on a run that is over. `outputs` holds the last lines of nodes that started no rank."""
    word = _STOPPED.get(state.stopping)
    if word:
        return Verdict(word=word, cause=state.stop_cause)
    if state.stopping == "failure" and (cause := state.stop_cause):
        said = (outputs or {}).get(cause.node or "", "")
        return Verdict(word="failed", cause=replace(cause, traceback=cause.traceback or said))
    counted = [state.nodes[name] for name in _counted(state)]
    if is_over(state) and all(node.exit_code == 0 for node in counted) and not (state.elastic and not state.outcome):
        return Verdict(word="passed")
    cause = blame_fault(state, first_cause(state, outputs))
    if cause is None and not is_over(state):
        unknown = ", ".join(node.name for node in counted if node.phase != "exited")
        killed = "composesim was killed before it saw how" if not state.stopping else "it is not known how"
        message = f"{killed} {unknown} ended"
        return Verdict(word="inconclusive", cause=Failure(t=state.last_t, kind="engine", message=message))
    is_script = cause is None or cause.kind != GAP  # else it is not known what the script would have done
    return Verdict(word="failed" if is_script else "inconclusive", cause=cause)


def _counted(state: ClusterState) -> tuple[str, ...]:
    """Return the nodes whose end the run waits for, and whose exit codes decide the verdict."""
    names = tuple(name for name in state.wanted if name in state.nodes)
    if state.driver and state.outcome is not None:  # the driver continued without lost nodes, or failed because of them
        return tuple(name for name in names if not state.nodes[name].is_gone or state.nodes[name].exit_code == 0)
    if not state.elastic or state.outcome is None or not state.rounds:
        return names
    last = state.rounds[-1]
    away = {name for fault in active_faults(state) for name in fault.loses}
    losses = (each for each in state.failures if each.rank is None and each.generation == last.generation)
    away |= {each.node for each in losses if each.node and is_excused(state, each)}
    return tuple(name for name in names if name in last.nodes and name not in away)
