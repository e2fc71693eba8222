"""Fold a run into messages for the page that shows it (`compose_sim/view`).

A message replaces `now` and appends to `spans`, `usage`, `metrics` and `logs`. A finished run is one message; a running run is a
sequence of them. Times are seconds since the start of the run, and those of spans microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed
from compose_sim.core.faults.kinds import KINDS as KINDS_OF_FAULTS
from compose_sim.core.json_values import to_json
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.bottleneck import straggler_of
from compose_sim.core.report.make_report import make_report
from compose_sim.core.report.report import Report
from compose_sim.core.state.fold import batches, fold_batch
from compose_sim.core.state.fold_ranks import new_numbers
from compose_sim.core.state.progress import phase_of
from compose_sim.core.state.state import ClusterState, RankState, initial_state, speaks_for_another
from compose_sim.core.state.timeline import KINDS, LineSpan, Span
from compose_sim.core.verdict.hang import diagnose, standings_of
from compose_sim.node.records.data import Batch, LoaderInfo

_MAX_NAMED = 8  # ranks that a rank waits for
_INIT = "init_process_group"
_OF_THE_PAGE = ("pause", "kill", "isolate")  # kinds of faults
_HOLDS = ("paused", "stopped", "isolated")  # phases of a node from which no data come


@dataclass(frozen=True, slots=True)
class CurrentWait:
    """What a rank waits in now, as in `node/records/timings.py`; `since` is in Unix seconds."""

    what: str
    since: float | None
    group: str = ""
    size: int = 0
    number: int = 0
    left: frozenset[int] = frozenset()  # ranks that have been in it, and are no longer

    @property
    def key(self) -> tuple[str, str, int]:
        """What is the same for all ranks that wait together."""
        operation = "" if ">" in self.group else self.what.partition(" ")[0]
        return self.group, operation, self.number


def current_waits(
    state: ClusterState,
    waits: Mapping[int, CurrentWait],
    members: Mapping[tuple[int, str], Set[int]],
    *,
    now: float,
    halted: Set[int] = frozenset(),
) -> dict[int, list[Any]]:
    """
    Return, for each rank that is in a collective, its kind (an index of KINDS), what it is, when it began, how long ago, and the
    ranks that it waits for. A rank waits for those of its group that have not reached the same collective, or that are `halted` in
    it, as are all ranks of a paused, stopped or isolated node.
    """
    present = {rank for rank, each in state.ranks.items() if each.phase != "exited" and not each.stopped}
    phases = {name: phase_of(state, name) for name in state.nodes}
    held = {name for name, phase in phases.items() if phase in _HOLDS}
    active = {rank for rank in present - halted if state.ranks[rank].node not in held}
    joining = {rank: CurrentWait(_INIT, None) for rank in active if state.ranks[rank].in_init}
    waits = joining | {rank: each for rank, each in waits.items() if rank in active}
    together: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for rank, each in waits.items():
        together[each.key].add(rank)
    found = {}
    for rank, each in sorted(waits.items()):
        here = together[each.key]
        expected = _expected(each, present, members.get((state.generation or 0, each.group), set()))
        # Ranks that wait for no other come first.
        late = sorted(expected - here - each.left, key=lambda other: (other in waits, other))
        is_cut = any(phases[state.ranks[other].node] == "partitioned" for other in here)
        complete = (len(here) == each.size or bool(expected)) and not is_cut
        kind = "waiting" if late else "moving" if complete else "collective"
        began = None if each.since is None else max(0.0, round(each.since - (state.started_at or each.since), 3))
        lasted = None if each.since is None else max(0.0, round(now - each.since, 1))
        found[rank] = [KINDS.index(kind), each.what, began, lasted, late[:_MAX_NAMED]]
    return found


def _expected(wait: CurrentWait, present: set[int], members: Set[int]) -> Set[int]:
    """Return the ranks that take part; none if they are not known. A size of 0 stands for the whole run."""
    sender, is_message, receiver = wait.group.partition(">")
    if is_message:
        return {int(each) for each in (sender, receiver) if each.isdecimal()}
    if wait.size in (0, len(present)):
        return present
    return members if len(members) == wait.size else set()


_KINDS = ("pause", "stop", "rank-stop", "isolate")
_SHORTEST_S = 0.02
_NOTICED_WITHIN_S = 1.0  # an agent looks at its ranks with every heartbeat


@dataclass(frozen=True, slots=True)
class Hold:
    """Ranks that were held, and from when to when, in Unix seconds."""

    ranks: tuple[int, ...]  # none: it is not known who waits for whom
    began: float
    ended: float | None  # None if it has not ended: only what was in progress when it began was held
    is_noticed: bool = False  # whether the times are when an agent noticed it


def holds_of(state: ClusterState) -> list[Hold]:
    """Return the holds of ranks by faults, by signals, and by partitions."""
    holds = []
    for fault in state.faults.values():
        began = fault.done_at or fault.begun_at
        if fault.kind == "partition":
            holds.append(Hold((), began, fault.heal_begun_at))
        elif fault.kind in _KINDS:
            on_nodes = (rank for rank, each in sorted(state.ranks.items()) if each.node in fault.nodes)
            ranks = tuple(on_nodes) if fault.rank is None else (fault.rank,)
            holds += [Hold(ranks, began, fault.heal_begun_at)] if ranks else []
    now = ((each.rank, each.halted_since, None) for each in state.ranks.values() if each.halted_since is not None)
    for rank, noticed, ended in (*state.halts, *now):
        if not any(rank in each.ranks and each.began <= noticed <= (each.ended or noticed) for each in holds):
            holds.append(Hold((rank,), noticed, ended, is_noticed=True))
    return holds


def divided_at_holds(span: Span, holds: Sequence[Hold]) -> Iterator[Span]:
    """Yield what is left of a span that moves data, and for the time of a hold a wait; that of a held rank is for itself."""
    ended = span.began + span.lasted
    for hold in holds if span.kind == "moving" else ():
        began, until = max(span.began, hold.began), _end_within(hold, span.began, ended)
        if began + _SHORTEST_S < until:
            yield replace(span, lasted=began - span.began)
            late = None if not hold.ranks else span.rank if span.rank in hold.ranks else hold.ranks[0]
            kind = "collective" if late is None else "waiting"
            yield replace(span, kind=kind, began=began, lasted=until - began, late=late)
            if until == ended:
                return
            span = replace(span, began=until, lasted=ended - until)
    yield span


def _end_within(hold: Hold, began: float, ended: float) -> float:
    """Return until when a hold held a collective; 0 if it did not, because the collective ended before it or began after it."""
    if (hold.ended is None or hold.is_noticed) and began > hold.began:
        return 0.0
    if hold.ended is None:
        return ended
    if ended < hold.ended - (_NOTICED_WITHIN_S if hold.is_noticed else 0.0):
        return 0.0
    return min(hold.ended, ended)


Message = dict[str, Any]
_END_OF_NODE = ("node-lost", "node-stopped")
_NO_METRICS = ("step", "epoch", "rank")
_MAX_METRICS = 200
_NOT_SHOWN = ("schema_version", "choices", "published", "driver", "timeline")  # fields of the report


class PageFold:
    """What has been seen of a run, and what of it is not yet in a message."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = initial_state(plan)
        self._shares: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._lives: dict[int, list[list[Any]]] = defaultdict(list)
        self._starts: dict[str, float] = {}  # of nodes
        self._inits: dict[int, list[float]] = defaultdict(list)  # when it began to call init_process_group, and ended
        self._stalls: dict[int, list[list[Any]]] = defaultdict(list)
        self._open: dict[int, Span] = {}  # the collective that a rank stands still in
        self._unfinished: list[Span] = []  # collectives that ranks were in when they were stopped
        self.writers: dict[tuple[str, int], int] = {}  # host name, process id -> rank
        self._hosts: dict[str | None, str] = {}
        self._texts: dict[str, int] = {"": 0}
        self._names = set[str]()  # of metrics
        # Rank -> the last step of its numbers, what is added to the next one, and whether lines are counted as none had a step
        self._places: dict[int | None, tuple[int, int, bool]] = {}
        self._new: Message = {}
        self._begin()

    def add_events(self, events: Iterable[Event]) -> None:
        """Take further events, those of the logs included."""
        events = list(events)
        for batch in batches(events):
            if not speaks_for_another(self.state, batch[0]):
                self.state = fold_batch(self.state, batch)
                for event in batch:
                    self._add_event(event, self._since(event.t))
        for event in events:  # last: the rounds of all lines are now known
            if event.kind == "log" and not speaks_for_another(self.state, event):
                self._new["logs"].append([event.rank, event.data["line"], round(self._since(event.t), 3)])

    def _add_event(self, event: Event, t: float) -> None:
        rank = event.rank
        if event.kind == "usage":
            self._add_usage(event, t)
        elif event.kind == "metric":
            self.add_metrics(rank, event.data.get("step"), event.data)
        elif event.kind == "numbers":
            self._add_numbers(event)
        elif event.kind in _END_OF_NODE:
            self._node_ended(event.data.get("node") or event.node, t)
        elif event.kind == "node-started":
            self._hosts[event.node] = str(event.data.get("hostname"))
            self._starts.setdefault(event.node or "", t)
        elif rank is None:
            return
        elif event.kind == "rank-started":
            self.writers[self._hosts.get(event.node, ""), int(event.data.get("pid") or 0)] = rank
            _close(self._lives[rank], t)
            self._lives[rank].append([t, None, event.node])
            self._open.pop(rank, None)
        elif event.kind == "init":
            self._inits[rank] = [*self._inits[rank], t][:2]
        elif event.kind == "rank-exited":
            _close(self._lives[rank], t)
            _close(self._stalls[rank], t)
            self._end_wait(rank, event.t, is_recorded=event.data.get("signal") is None)
        elif event.kind == "stalled":
            _close(self._stalls[rank], t)
            since = float(event.data.get("since_s") or 0.0)
            what = str(event.data.get("waiting_in") or "")
            self._stalls[rank].append([max(0.0, t - since), None, bool(what)])
            if what:
                known = self.state.ranks.get(rank)
                step = known.step or 0 if known else 0
                self._open[rank] = Span(rank, "collective", event.t - since, 0.0, step, what)
        elif event.kind == "resumed":
            _close(self._stalls[rank], t)
            self._open.pop(rank, None)  # the rank records it

    def _end_wait(self, rank: int, t: float, *, is_recorded: bool) -> None:
        """Keep the collective that a rank was in to its end; a rank that ends by itself records that."""
        span = self._open.pop(rank, None)
        if span and not is_recorded:
            self._unfinished.append(replace(span, lasted=max(0.0, t - span.began)))

    def _add_unfinished(self) -> None:
        """Add the collectives that never ended, in which ranks waited for the cause of a hang."""
        for rank in list(self._open):
            self._end_wait(rank, self.state.last_t, is_recorded=False)
        late = diagnose(found, folder="").rank if self._unfinished and (found := standings_of(self.state)) else None
        self.add_spans(
            span if late in (None, span.rank) else replace(span, kind="waiting", late=late) for span in self._unfinished
        )
        self._unfinished.clear()

    def _node_ended(self, name: str | None, t: float) -> None:
        """A node that is killed reports no end of its ranks."""
        for lives in self._lives.values():
            if lives and lives[-1][2] == name:
                _close(lives, t)

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Take further spans of the timeline."""
        start, holds = self.state.started_at or 0.0, holds_of(self.state)
        for span in (each for whole in spans for each in divided_at_holds(whole, holds)):
            if span.late == span.rank:
                self._stalls[span.rank].append([self._since(span.began), self._since(span.began + span.lasted), False])
                continue
            self._shares[span.rank][span.kind] += span.lasted
            if span.late is not None:
                self._shares[span.late]["caused"] += span.lasted
            text = self._text_of(span.what)
            began, lasted = round((span.began - start) * 1e6), round(span.lasted * 1e6)
            self._new["spans"].append([span.rank, KINDS.index(span.kind), began, lasted, span.step, text, span.late])

    def add_lines(self, lines: Iterable[LineSpan]) -> None:
        """Take further lines of the script at which ranks were."""
        for each in lines:
            text = self._text_of(f"({each.file}, line {each.line})")
            began = round((each.began - (self.state.started_at or 0.0)) * 1e6)
            self._new["lines"].append([each.rank, text, began, round(each.lasted * 1e6)])

    def _text_of(self, what: str) -> int:
        if what not in self._texts:
            self._texts[what] = len(self._texts)
            self._new["texts"].append(what)
        return self._texts[what]

    def take(self, *, report: Report | None, is_over: bool, **more: Any) -> Message:
        """Return what is new, with the state of the run: `report` is that of a run that is over."""
        if is_over:
            self._add_unfinished()
        message = {"now": {**self._now(report, is_over=is_over), **more}, **self._new}
        self._begin()
        return message

    def _begin(self) -> None:
        self._new = {"spans": [], "lines": [], "texts": [], "usage": [], "metrics": [], "logs": []}

    def _since(self, t: float) -> float:
        return round(max(0.0, t - (self.state.started_at or t)), 4)

    def _add_usage(self, event: Event, t: float) -> None:
        node = self.state.nodes.get(event.node or "")
        usage = node.usage if node else None
        if usage:
            values = (usage.cpus, usage.memory_bytes, usage.received_bytes, usage.sent_bytes)
            self._new["usage"].append([event.node, t, *values, usage.gpu_use, usage.gpu_memory_bytes])

    def add_metrics(self, rank: int | None, step: int | None, values: Mapping[str, Any]) -> None:
        """Take further values of metrics; a script may print any number of names, and those beyond _MAX_METRICS are ignored."""
        for name, value in values.items():
            if name in _NO_METRICS or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if len(self._names) < _MAX_METRICS or name in self._names:
                self._names.add(name)
                self._new["metrics"].append([name, rank, step, value])

    def _add_numbers(self, event: Event) -> None:
        """Take numbers of no metric line. Their step may begin again in each epoch, and be missing: it continues from the last."""
        rank = self.state.ranks.get(event.rank if event.rank is not None else -1)
        values = new_numbers(event, rank.metric if rank else {})
        step, (before, ahead, counts) = event.data["step"], self._places.get(event.rank, (0, 0, True))
        if step is None:
            place = before + counts
        else:
            ahead, counts = ahead if step + ahead >= before or counts else before + 1 - step, False
            place = step + ahead
        self._places[event.rank] = place, ahead, counts
        self.add_metrics(event.rank, place, values)

    def _now(self, report: Report | None, *, is_over: bool) -> Message:
        state = self.state
        shown = (report or make_report(self.plan, state)).to_dict()
        if not is_over:
            shown |= {"verdict": "running", "exit_code": None, "cause": None}
        return {
            **{name: value for name, value in shown.items() if name not in _NOT_SHOWN},
            "is_over": is_over,
            "folder": self.plan.working_directory,
            "t": self._since(state.last_t),
            "master_ended_s": self._since(state.master_stopped_at) if state.master_stopped_at else None,
            "phases": {name: phase_of(state, name) for name in state.nodes},
            "wanted": list(state.wanted),
            "ranks": [_rank(each) for each in state.ranks.values()],
            "lives": dict(self._lives),
            "stalls": dict(self._stalls),
            "kinds": list(KINDS),
            "shares": {rank: dict(shares) for rank, shares in sorted(self._shares.items())},
            "actions": [kind for kind in _OF_THE_PAGE if self.plan.engine in KINDS_OF_FAULTS[kind].engines],
            "starts": dict(self._starts),
            "inits": dict(self._inits),
            "straggler": to_json(straggler_of(report.rank_times)) if report else None,
            "hang": _hang(state, self.plan) if _hangs(state, report) else None,
        }


def _hangs(state: ClusterState, report: Report | None) -> bool:
    return state.hang is not None or (report is not None and report.cause is not None and report.cause.kind == "hang")


def _hang(state: ClusterState, plan: Plan) -> Message | None:
    """Return the diagnosis, and the stacks of all ranks, that of the culprit first."""
    standings = standings_of(state)
    if not standings:
        return None
    found = diagnose(standings, folder=plan.working_directory)
    ranks = [
        {
            "rank": each.rank,
            "node": each.node,
            "is_culprit": each.rank == found.rank,
            "waits_in": each.waits_in,
            "stands": "exited with status 0" if each.has_left else each.stands(plan.working_directory),
            "frames": [list(frame) for frame in each.frames],
            "steps": each.steps,
        }
        for each in sorted(standings, key=lambda each: (each.rank != found.rank, each.rank))
    ]
    place = list(found.place) if found.place else None
    return {"message": found.message, "fix": found.fix, "rank": found.rank, "place": place, "ranks": ranks}


def _rank(rank: RankState) -> Mapping[str, Any]:
    return {
        **{"rank": rank.rank, "node": rank.node, "phase": rank.phase, "step": rank.step},
        **{"exit_code": rank.exit_code, "signal": rank.signal, "stopped": rank.stopped},
    }


def _close(periods: list[list[Any]], t: float) -> None:
    if periods and periods[-1][1] is None:
        periods[-1][1] = t


_WIDTH = 480  # samples of one strip


def sample_strips(observed: Observed) -> list[dict[str, Any]]:
    """Return, by loader and epoch, the samples that each rank drew in order, and how often all ranks together drew each."""
    drawn: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    loaders: dict[int, LoaderInfo] = {}
    for rank in observed:
        for known in rank.of(LoaderInfo):
            loaders.setdefault(known.loader, known)
        for batch in rank.of(Batch):
            if batch.indices:
                drawn[batch.loader, batch.epoch][rank.rank] += batch.indices
    strips: list[dict[str, Any]] = []
    for (number, epoch), ranks in sorted(drawn.items()):
        if number not in loaders:
            continue
        info = loaders[number]
        counts = Counter(index for indices in ranks.values() for index in indices)
        before = drawn.get((number, epoch - 1))
        strips.append(
            {
                **{"loader": number, "epoch": epoch, "data": info.data, "length": info.length},
                "at": list(info.made or info.at or ()),
                "drawn": counts.total(),
                "distinct": len(counts),
                "repeated": sum(1 for count in counts.values() if count > 1),
                "as_before": before is not None and all(_begins_alike(ranks[r], before.get(r, [])) for r in ranks),
                "is_part": info.threshold is not None,
                "ranks": {rank: _thinned(indices) for rank, indices in sorted(ranks.items())},
            }
        )
    return strips


def _begins_alike(one: list[int], other: list[int]) -> bool:
    shorter = min(len(one), len(other))
    return shorter > 1 and one[:shorter] == other[:shorter]


def _thinned(indices: list[int]) -> list[int]:
    return [indices[n * len(indices) // _WIDTH] for n in range(_WIDTH)] if len(indices) > _WIDTH else indices
