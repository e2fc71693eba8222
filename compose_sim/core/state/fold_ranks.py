"""Fold the events of ranks. Events of an earlier round do not change the current one."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.state.last_words import end_of, with_assertion
from compose_sim.core.state.state import GAP, MAX_ROUNDS, ClusterState, Failure, NodeState, RankState, Round, is_on

_PHASES = ["starting", "init", "running", "ended", "exited"]
_MAX_HALTS = 100
_SIGNALS = {
    2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM",
}  # fmt: skip


def _on_rank_started(state: ClusterState, event: Event) -> ClusterState:
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    # A driver may start a rank again in the same round.
    if rank and rank.phase == "exited" and state.driver:
        state = state.with_rank(RankState(rank=rank.rank, node=rank.node, generation=rank.generation))
    return _update_rank(state, event)


def _on_init(state: ClusterState, event: Event) -> ClusterState:
    done = event.data.get("phase") == "done"
    wanted_size = event.data.get("world_size")
    phase = "running" if done else "init"
    return _update_rank(state, event, phase=phase, joined_group=True, in_init=not done, init_world_size=wanted_size)


def _on_step(state: ClusterState, event: Event) -> ClusterState:
    state = replace(state, first_step_at=_earlier(state.first_step_at, event.t))
    state = _update_round(state, event, lambda each: replace(each, first_step_at=_earlier(each.first_step_at, event.t)))
    return _count_steps(_update_rank(state, event, phase="running"), event, event.data.get("step") or 0)


def _count_steps(state: ClusterState, event: Event, steps: int) -> ClusterState:
    """Note how many steps a rank has made; its last events may be missing, or those of an earlier round may be late."""
    rank, node = state.ranks.get(event.rank if event.rank is not None else -1), state.nodes.get(event.node or "")
    known = rank.step or 0 if rank and rank.generation == event.generation else 0
    state = _update_rank(state, event, step=max(known, steps)) if steps else state
    if node is None:
        return state
    rounds = node.steps_in_rounds
    if event.generation not in rounds and len(rounds) >= MAX_ROUNDS:
        return state
    most = max(rounds.get(event.generation, 0), steps)
    return state.with_node(replace(state.nodes[node.name], steps_in_rounds={**rounds, event.generation: most}))


def count_steps(state: ClusterState, counted: Mapping[tuple[str, int, int], int]) -> ClusterState:
    """Return the state with the steps that ranks had counted at the end, by node, rank and generation."""
    for (node, rank, generation), steps in counted.items():
        event = Event(t=state.last_t, kind="step", node=node, rank=rank, generation=generation)
        state = _count_steps(state, event, steps) if is_on(state, node, rank, generation) else state
    return state


def fold_metrics(state: ClusterState, events: Sequence[Event]) -> ClusterState:
    """Return the state after these metric lines, all of one rank in one round."""
    first, last = events[0], events[-1]
    rank = state.ranks.get(first.rank if first.rank is not None else -1)
    before = rank.metric.get("step") if rank and first.generation in (None, rank.generation) else None
    lines = [before, *(event.data.get("step") for event in events)]
    apart = [two - one for one, two in pairwise(lines) if isinstance(one, int) and isinstance(two, int) and two > one]
    if apart and _is_now(state, first):
        state = replace(state, metric_interval=min(apart + ([state.metric_interval] if state.metric_interval else [])))
    steps = [(step, event.t) for event in events if isinstance(step := event.data.get("step"), int)]
    if steps:
        state = _note_steps(state, first, steps)
    return _update_rank(state.with_metrics(*(event.data for event in events)), last, metric=last.data)


def fold_numbers(state: ClusterState, events: Sequence[Event]) -> ClusterState:
    """
    Return the state after these lines with numbers that are not metric lines, all of one rank in one round.

    They say nothing about steps, and a metric line of the rank is preferred.
    """
    rank = state.ranks.get(events[0].rank if events[0].rank is not None else -1)
    values = [new_numbers(event, rank.metric if rank else {}) for event in events]
    state = state.with_metrics(*values)
    return state if rank and "step" in rank.metric else _update_rank(state, events[-1], metric=values[-1])


def new_numbers(event: Event, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the numbers of a line, without those that metric lines have too: `known` holds a step if there are metric lines."""
    values: Mapping[str, Any] = event.data["values"]
    return {name: value for name, value in values.items() if name not in known} if "step" in known else values


def _note_steps(state: ClusterState, event: Event, steps: Sequence[tuple[int, float]]) -> ClusterState:
    """Note the steps of metric lines, each with its time."""
    numbers = [step for step, _ in steps]

    def seen(each: Round) -> Round:
        first = numbers if each.first_step is None else [each.first_step, *numbers]
        # If no optimizer of torch was observed, the metric line is the first evidence of a step.
        first_at = steps[0][1] if each.first_step_at is None else each.first_step_at
        return replace(
            each, first_step=min(first), last_step=max(each.last_step or 0, *numbers), first_step_at=first_at
        )

    return _update_round(state, event, seen)


def _on_exception(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    message = describe(data.get("type") or "Exception", data.get("message") or "", data.get("traceback") or "")
    hint, gap = data.get("hint", ""), data.get("gap", "")
    traceback = "\n".join(part.rstrip() for part in (data.get("traceback", ""), hint) if part)
    kind, message = (GAP, f"{gap}: {message}") if gap else ("exception", message)
    return _update_rank(state, event, exception=Failure.of(event, kind, message, traceback))


def _on_script_ended(state: ClusterState, event: Event) -> ClusterState:
    code, said = event.data.get("exit_code"), str(event.data.get("message") or "")
    return _update_rank(state, event, phase="ended", script_exit_code=code, exit_message=said)


def _on_rank_exited(state: ClusterState, event: Event) -> ClusterState:
    data = event.data
    exit_code, signal, stopped = data.get("exit_code"), data.get("signal"), bool(data.get("stopped"))
    known = state.ranks.get(event.rank if event.rank is not None else -1)
    changes = {"exit_code": exit_code, "signal": signal, "exited_at": event.t, "stopped": stopped}
    state = _update_rank(state, event, phase="exited", in_init=False, **changes)
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    if not _is_now(state, event):  # reported after the end of the round, but still a failure
        rank = RankState(rank=event.rank or 0, node=event.node or "") if known else None
    # A driver ends all ranks when one has failed, even the rank that raised the first exception and is about to exit.
    if rank and (not stopped or (state.driver and rank.exception)) and (signal or exit_code):
        state = state.with_failure(_failure_of(rank, event, state.nodes.get(rank.node)))
    return state


_ABORTED = 6
_CRASHES = (_ABORTED, 7, 11)
_OF_SHELLS = {126: " (the command cannot be executed)", 127: " (command not found)"}


def _failure_of(rank: RankState, event: Event, node: NodeState | None) -> Failure:
    exit_code, signal = event.data.get("exit_code"), event.data.get("signal")
    words: Sequence[str] = event.data.get("words") or ()
    if rank.exception and signal in (None, *_CRASHES):  # CUDA's errors are raised, and then end the process
        message = with_assertion(rank.exception.message, words) + _why_refused(event, rank.node)
        return replace(rank.exception, message=message)
    name = _SIGNALS.get(signal or 0, f"signal {signal}")
    if event.data.get("oom"):
        who = rank.node if node and node.has_memory_limit else "this machine"
        kind, message = "oom", f"rank {rank.rank} was killed: {who} ran out of memory"
    elif signal and rank.script_exit_code == 0:
        kind, message = "teardown", f"rank {rank.rank} crashed in teardown, after training ended ({name})"
    elif signal:
        how = "aborted" if signal == _ABORTED and end_of(words) else f"was killed by {name}"
        kind, message = "signal", f"rank {rank.rank} {how}: {end_of(words)}".removesuffix(": ")
    else:
        meaning = f": {rank.exit_message}" if rank.exit_message else _OF_SHELLS.get(exit_code or 0, "")
        kind, message = "exit", f"rank {rank.rank} exited with status {exit_code}{meaning}"
    message += _why_refused(event, rank.node)
    return Failure.of(event, kind, message, "\n".join(words), node=rank.node, rank=rank.rank)


def _why_refused(event: Event, node: str) -> str:
    refused = event.data.get("no_process_ids")
    return f" ({node} could start no more processes or threads: a limit was reached)" if refused else ""


def _on_stalled(state: ClusterState, event: Event) -> ClusterState:
    since = event.t - float(event.data.get("since_s") or 0.0)
    state = _update_rank(state, event, stall=event.data, stalled_since=since)
    return _count_steps(state, event, event.data.get("steps") or 0)


def _on_resumed(state: ClusterState, event: Event) -> ClusterState:
    state = _update_rank(state, event, stall=None)
    return replace(state, hang=None) if _is_now(state, event) else state


def _on_continued(state: ClusterState, event: Event) -> ClusterState:
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    if rank and rank.halted_since is not None:
        state = replace(state, halts=(*state.halts, (rank.rank, rank.halted_since, event.t))[-_MAX_HALTS:])
    return _update_rank(state, event, halted_since=None)


def _is_now(state: ClusterState, event: Event) -> bool:
    """Return whether an event belongs to the current round, or to no particular one."""
    return None in (event.generation, state.generation) or (event.generation or 0) >= (state.generation or 0)


def _update_round(state: ClusterState, event: Event, change: Any) -> ClusterState:
    generation = state.generation if event.generation is None else event.generation
    return replace(
        state, rounds=tuple(change(each) if each.generation == generation else each for each in state.rounds)
    )


def _update_rank(state: ClusterState, event: Event, **changes: Any) -> ClusterState:
    """
    Return the state with these changes to the rank of the event. An event of an earlier round changes nothing.

    The first event of a new round, of any kind, resets the rank: events of a rank may come before the agent reports the start.
    """
    rank = state.ranks.get(event.rank if event.rank is not None else -1)
    known = rank.generation if rank and rank.generation is not None else -1
    if not _is_now(state, event) or (event.generation is not None and event.generation < known):
        return state
    if event.rank is not None and event.node and event.generation is not None and event.generation > known:
        rank = RankState(rank=event.rank, node=event.node, generation=event.generation)
    if rank is None:
        return state
    return _phase_of_node(state.with_rank(replace(rank, **changes)), rank.node)


def _phase_of_node(state: ClusterState, name: str) -> ClusterState:
    node = state.nodes.get(name)
    if not node or node.is_gone:
        return state
    phases = [rank.phase for rank in state.ranks.values() if rank.node == name]
    slowest = min(phases, key=_PHASES.index, default=node.phase)
    return state.with_node(replace(node, phase="ended" if slowest == "exited" else slowest))


def _earlier(known: float | None, t: float) -> float:
    return t if known is None else min(known, t)


HANDLERS = {
    "rank-started": _on_rank_started,
    "init": _on_init,
    "step": _on_step,
    "metric": lambda state, event: fold_metrics(state, [event]),
    "numbers": lambda state, event: fold_numbers(state, [event]),
    "exception": _on_exception,
    "script-ended": _on_script_ended,
    "rank-exited": _on_rank_exited,
    "stalled": _on_stalled,
    "resumed": _on_resumed,
    "dumped": lambda state, event: _update_rank(state, event, dump=event.data, dumped_at=event.t),
    "halted": lambda state, event: _update_rank(state, event, halted_since=event.t),
    "continued": _on_continued,
    "breakpoint": lambda state, event: _update_rank(state, event, at_breakpoint=event.data.get("phase") != "released"),
}


_WRAPPERS = ("ProcessRaisedException", "ChildFailedError")
_CAUGHT = re.compile(r"Caught \w+ in ")  # "Caught ValueError in DataLoader worker process 1."
# NCCL writes its code in the second line, and what has happened in the last one
_NCCL_CODE = re.compile(r"^(?P<code>nccl[A-Z]\w{1,40}): ", re.MULTILINE)
_LAST_ERROR = re.compile(r"^Last error: ?\n(?P<error>\S.{0,400})", re.MULTILINE)
_BEGIN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')
_RANK = re.compile(r"^[ \t]{0,40}rank[ \t]{0,40}: (?P<rank>\d{1,9})", re.MULTILINE)
_EXIT_CODE = re.compile(r"^[ \t]{0,40}exitcode[ \t]{0,40}: (?P<code>-?\d{1,9})", re.MULTILINE)
_PROGRAM = re.compile(r"^(?P<program>\S+) FAILED$", re.MULTILINE)
_NOT_THE_USERS = re.compile(r"/(site|dist)-packages/|/lib/python\d|/\.composesim/runs/[^/]+/node/|/compose_?sim/node/")


@dataclass(frozen=True, slots=True)
class _Found:
    message: str
    frames: tuple[tuple[str, str], ...]  # file and line, from the outermost call


def describe(kind: str, message: str, traceback: str = "") -> str:
    """
    Return `ValueError: boom`, or for the exception of another process the inner one, with its file and line.

    If the inner one comes from no line of the script, the line is that in `traceback`.
    """
    if kind in _WRAPPERS or _CAUGHT.match(message):
        found = _last_traceback(message)
        if found:
            mine = _of_script(found.frames) or _of_script(_frames_in(traceback.replace(message, ""))) or found.frames
            return f"{found.message}{_place(mine)}"
        if kind == "ChildFailedError":
            return f"{kind}: {_exit(message)}"
    if (error := _LAST_ERROR.search(message)) and (code := _NCCL_CODE.search(message)):
        return f"{kind}: {code['code']}: {error['error'].strip()}\n{message}"
    return f"{kind}: {message}".rstrip(": ")


def _last_traceback(text: str) -> _Found | None:
    before, begin, after = text.rpartition(_BEGIN)
    if not begin:
        return None
    label = before.rpartition("\n")[2]  # torchrun writes "traceback : " before the first line
    indent = "" if not label.strip() else label[: len(label) - len(label.lstrip())]
    frames: list[tuple[str, str]] = []
    for line in after.splitlines()[1:]:
        text = line.removeprefix(indent)
        frame = _FRAME.match(text)
        if frame:
            frames.append((frame["file"], frame["line"]))
        elif text[:1].strip():
            return _Found(text.strip(), tuple(frames))
    return None


def _frames_in(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((frame["file"], frame["line"]) for frame in map(_FRAME.match, text.splitlines()) if frame)


def _of_script(frames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(frame for frame in frames if not _NOT_THE_USERS.search(frame[0]))


def _place(frames: tuple[tuple[str, str], ...]) -> str:
    return f" ({posixpath.basename(frames[-1][0])}, line {frames[-1][1]})" if frames else ""


def _exit(message: str) -> str:
    program, rank, code = (pattern.search(message) for pattern in (_PROGRAM, _RANK, _EXIT_CODE))
    who = f"its rank {rank['rank']}" if rank else "a rank"
    how = f"exited with status {code['code']}" if code else "failed"
    return f"{program['program'] if program else 'the launched program'} failed: {who} {how}"
