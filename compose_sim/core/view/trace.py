"""Write the timeline of a run, with the profiles of its ranks, as a trace in Chrome's JSON format.

Perfetto from version 58 on also opens several files at once, as one timeline: a ZIP file with a manifest that names the machine
of each file.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from compose_sim.core.state.timeline import KINDS, Message
from compose_sim.core.view.page import Message as PageMessage

_PHASES = frozenset("XBEiICbensft")  # besides M
_NUMBERED, _MAX_IDS = frozenset("stfben"), 10_000_000  # flows and asynchronous events, of one rank
_NAMED = ("process_name", "process_labels", "thread_name")


@dataclass(frozen=True, slots=True)
class Profile:
    """What torch.profiler wrote on one rank, as JSON values; `lag` is how far the machine's clock was ahead of the run's."""

    rank: int
    node: str
    content: Any
    lag: float = 0.0


def profile_events(profile: Profile, *, started_at: float, first_pid: int, sort_index: int) -> list[dict[str, Any]]:
    """Return the events in microseconds since the start of the run, each process of the rank with an own number."""
    content = profile.content if isinstance(profile.content, Mapping) else {}
    base = content.get("baseTimeNanoseconds", 0)
    base = base if isinstance(base, int) and not isinstance(base, bool) else 0
    shift = (base - round((started_at + profile.lag) * 1e9)) / 1000
    pids: dict[int, int] = {}
    ids: dict[str, int] = {}
    names: dict[int, dict[str, str]] = {}
    events: list[dict[str, Any]] = []
    for event in _valid(content.get("traceEvents")):
        pid = pids.setdefault(event["pid"], first_pid + len(pids))
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                events.append({**event, "pid": pid})
            else:
                names.setdefault(pid, {})[event["name"]] = str(next(iter(event["args"].values())))
            continue
        made = {
            **event,
            "pid": pid,
            "ts": event["ts"] + shift,
            **({"dur": event.get("dur", 0)} if event["ph"] == "X" else {}),
        }
        if event["ph"] in _NUMBERED:  # those of two ranks must not meet, and Perfetto takes only numbers
            made["id"] = profile.rank * _MAX_IDS + ids.setdefault(str(event.get("id")), len(ids) % _MAX_IDS)
        events.append(made)
    used = {event["pid"] for event in events}
    for index, pid in enumerate(sorted(used)):
        name = names.get(pid, {})
        words = f"rank {profile.rank} {name.get('process_labels') or name.get('process_name') or 'process'}"
        about = {"ph": "M", "pid": pid, "tid": 0}
        events.append({**about, "name": "process_name", "args": {"name": f"{profile.node}: {words}"}})
        events.append({**about, "name": "process_sort_index", "args": {"sort_index": sort_index + index}})
    return events


def _valid(events: Any) -> Iterator[dict[str, Any]]:
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict) or not all(_is_number(event.get(name)) for name in ("pid", "tid")):
            continue
        phase, name, values = event.get("ph"), event.get("name"), event.get("args", {})
        if phase == "M":
            if name in _NAMED and isinstance(values, dict) and values:
                yield event
        elif phase in _PHASES and _is_finite(event.get("ts")) and _is_finite(event.get("dur", 0)):
            yield event


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e18


_ROW = dict.fromkeys(KINDS[: KINDS.index("waiting")], 0)  # thread 0 computes; thread 1 is in collectives
_RUN_PID = 1  # the run comes first, then nodes; 0 is the idle process for Perfetto
_RUN_TID, _FIRST_TID = 100_000_000, 100_000_001  # beyond all processes
_FIRST_FLOW = 1_000_000_000  # numbers of flows of waits; those of messages and of profiles are smaller
_SHORTEST, _AT_THE_END = 1, 5e6  # microseconds of a span, and before the end of a run
_PIDS_OF_RANK = 1000  # numbers for the processes in the profile of a rank, which are few
_SORTED_PER_NODE = 1_000_000  # the profiles of its ranks follow a node
_SHORTEST_ARROW = 2.0  # microseconds: both ends must be inside their spans
_ROUNDING = 2  # microseconds
_Events = list[dict[str, Any]]


def chrome_trace(
    message: PageMessage, messages: Iterable[Message] = (), profiles: Iterable[Profile] = ()
) -> dict[str, Any]:
    """Return the trace: a process per node, two threads per rank, and faults, rounds and hangs as events of the run."""
    now = message["now"]
    node_of = {rank: node["name"] for node in now["nodes"] for rank in node["ranks"]}
    node_of |= {each["rank"]: each["node"] for each in now["ranks"]}
    pids = {node["name"]: index for index, node in enumerate(now["nodes"], _RUN_PID + 1)}
    events = [_named(_RUN_PID, "process_name", f"run {now['run']}"), _sorted(_RUN_PID, 0)]
    for name, pid in pids.items():
        events += [_named(pid, "process_name", name), _sorted(pid, pid * _SORTED_PER_NODE)]
    events.append(_named(_RUN_PID, "thread_name", "rounds, faults and the end", _RUN_TID))
    for rank, node in sorted(node_of.items()):
        for row, words in enumerate(("computes", "in collectives")):
            events += _track(pids.get(node, _RUN_PID), rank, row, f"rank {rank} {words}")
    texts, spans = ["", *message["texts"]], []
    for rank, kind, began, lasted, step, text, late in message["spans"]:
        if lasted < _SHORTEST:
            continue
        name = now["kinds"][kind]
        arguments = {"step": step, "what": texts[text], "waits for rank": late}
        spans.append(
            {
                **{"ph": "X", "name": _name_of(name, texts[text], late), "cat": name, "ts": began, "dur": lasted},
                **_place(pids.get(node_of.get(rank, ""), _RUN_PID), rank, _ROW.get(name, 1)),
                "args": {key: value for key, value in arguments.items() if value not in (None, "")},
            }
        )
    places = {
        rank: (pid, _place(pid, rank, 1)["tid"]) for rank, node in node_of.items() for pid in [pids.get(node, _RUN_PID)]
    }
    stuck = _stuck(message, places)
    events += _nested([*spans, *stuck])
    events += _flows(message, places, stuck)
    started_at = now["timings"]["started_at"] or 0.0
    events += _arrows(messages, places, started_at)
    for index, profile in enumerate(sorted(profiles, key=lambda each: each.rank), 1):
        sort_index = pids.get(profile.node, _RUN_PID) * _SORTED_PER_NODE + index * _PIDS_OF_RANK
        numbers = {"first_pid": len(pids) + index * _PIDS_OF_RANK, "sort_index": sort_index}
        of_rank = profile_events(profile, started_at=started_at, **numbers)
        events += _nested([each for each in of_rank if each["ph"] == "X"])
        events += (each for each in of_rank if each["ph"] != "X")
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": now["run"], "program": now["program"]},
        "traceEvents": events + _of_the_run(message, pids),
    }


def _name_of(kind: str, what: str, late: int | None) -> str:
    """Return the name of a span; it begins with what matters, as its end is cut off."""
    words = what.partition(" #")[0]
    if kind == "waiting":
        return f"waits for rank {late} · {words}"
    return kind if kind in _ROW else words if kind == "collective" else f"{kind} · {words}"


def _stuck(message: PageMessage, places: Mapping[int, tuple[int, int]]) -> _Events:
    """Return what the cause of a hang does from when others began to wait for it."""
    now = message["now"]
    hang = now["hang"]
    if not hang or hang["rank"] not in places:
        return []
    ended = now["t"] * 1e6
    waits = [span for span in message["spans"] if span[6] == hang["rank"] and span[2] + span[3] >= ended - _AT_THE_END]
    began = min((span[2] for span in waits), default=None)
    if began is None:
        return []
    culprit = next((each for each in hang["ranks"] if each["is_culprit"]), {"stands": "", "node": ""})
    stands = culprit["stands"].removeprefix(f"rank {hang['rank']} on {culprit['node']} ")
    pid, tid = places[hang["rank"]]
    waiters = len({span[0] for span in waits})
    name = f"{stands}: {waiters} ranks wait" if waiters > 1 else f"{stands}: a rank waits"
    return [{"ph": "X", "name": name, "cat": "hang", "ts": began, "dur": round(ended) - began, "pid": pid, "tid": tid}]


def _flows(message: PageMessage, places: Mapping[int, tuple[int, int]], stuck: _Events) -> _Events:
    """Return flows from where the rank that was late reached a collective, to the ends of the waits for it."""
    reached: dict[tuple[int, int, int], int] = {}
    for rank, kind, began, lasted, step, text, _ in message["spans"]:
        if message["now"]["kinds"][kind] == "moving" and lasted >= _SHORTEST:
            reached.setdefault((rank, step, text), began)
    hung = message["now"]["hang"]["rank"] if stuck else None
    events: _Events = []
    for number, (rank, _, began, lasted, step, text, late) in enumerate(message["spans"], _FIRST_FLOW):
        if late is None or rank not in places or late not in places or lasted < _SHORTEST_ARROW:
            continue
        ends_in_hang = late == hung and began >= stuck[0]["ts"]
        at = stuck[0]["ts"] + 1 if ends_in_hang else reached.get((late, step, text))
        if at is None:
            continue
        for phase, of, ts in (("s", late, at), ("f", rank, began + lasted - 1)):
            pid, tid = places[of]
            flow = {"ph": phase, "cat": "wait", "name": f"waited for rank {late}", "id": number, "ts": ts}
            events.append({**flow, "pid": pid, "tid": tid, **({"bp": "e"} if phase == "f" else {})})
    return events


def perfetto_files(trace: dict[str, Any]) -> dict[str, str]:
    """Return the files of a ZIP that Perfetto from version 58 on opens as one timeline: one per node, and the manifest."""
    names = {
        event["pid"]: event["args"]["name"].partition(": ")[0]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    by_machine: dict[str, _Events] = defaultdict(list)
    for event in trace["traceEvents"]:
        by_machine[names.get(event["pid"], "")].append(event)
    first = f"{next(iter(by_machine))}.json"
    files: list[dict[str, Any]] = []
    for machine in by_machine:
        clocks = {} if not files else {"clocks": {"sync_to": {"file": first}, "offset_ns": 0}}
        files.append({"path": f"{machine}.json", "machine": {"name": machine}, **clocks})
    attributes = {f"composesim.{name}": value for name, value in trace["otherData"].items()}
    manifest = {"perfetto_manifest": {"version": 1, "files": files, "attributes": attributes}}
    written = {f"{machine}.json": {**trace, "traceEvents": events} for machine, events in by_machine.items()}
    return {
        name: json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        for name, each in (("manifest", manifest), *written.items())
    }


def _nested(spans: _Events) -> _Events:
    """Return the spans so that those of a thread follow or contain one another: Perfetto drops a span that overlaps another."""
    open_spans: dict[tuple[int, int], _Events] = defaultdict(list)
    events: _Events = []
    for span in sorted(spans, key=lambda each: (each["ts"], -each["dur"])):
        around = open_spans[span["pid"], span["tid"]]
        while around and _end(around[-1]) <= span["ts"]:
            around.pop()
        events.append(span)
        if around and _end(around[-1]) < _end(span):
            if _end(around[-1]) - span["ts"] > _ROUNDING:  # two threads of the script, or a message on its way
                common = {**span, "cat": span.get("cat") or "span", "id": f"{span['pid']}.{len(events)}"}
                common.pop("dur")
                events[-1:] = [{**common, "ph": "b"}]
                events.append({**common, "ph": "e", "ts": _end(span)})
                continue
            before = around.pop()
            before["dur"] = span["ts"] - before["ts"]
        around.append(span)
    return events


def _end(span: dict[str, Any]) -> float:
    end: float = span["ts"] + span["dur"]
    return end


def _arrows(messages: Iterable[Message], places: dict[int, tuple[int, int]], started_at: float) -> _Events:
    """Return a flow from the beginning of each send to the end of its receive."""
    events: _Events = []
    for number, each in enumerate(messages, 1):
        sent, arrived = round((each.sent - started_at) * 1e6), round((each.arrived - started_at) * 1e6) - 1
        if arrived - sent < _SHORTEST_ARROW or each.sender not in places or each.receiver not in places:
            continue
        for phase, rank, at in (("s", each.sender, sent), ("f", each.receiver, arrived)):
            pid, tid = places[rank]
            flow = {"ph": phase, "cat": "message", "name": "message", "id": number}
            events.append({**flow, "ts": at, "pid": pid, "tid": tid, **({"bp": "e"} if phase == "f" else {})})
    return events


def _of_the_run(message: PageMessage, pids: dict[str, int]) -> _Events:
    """Return rounds as instants, faults as asynchronous events, since they overlap, and samples of usage as counters."""
    now = message["now"]
    events: _Events = [
        _instant(f"round {each['generation'] + 1}: {each['world_size']} ranks", each["began_s"])
        for each in now["rounds"]
    ]
    if now["cause"]:
        stalls = [began for periods in now["stalls"].values() for began, *_ in periods] if now["hang"] else []
        first_line = now["cause"]["message"].partition("\n")[0]
        events.append(_instant(f"{now['verdict']}: {first_line}", min(stalls, default=now["t"])))
    for fault in now["faults"]:
        ended = fault["healed_s"] if fault["healed_s"] is not None else now["t"]
        common = {"cat": "fault", "name": fault["text"], "id": fault["id"], "pid": _RUN_PID, "tid": _RUN_TID}
        events.append({"ph": "b", "ts": fault["begun_s"] * 1e6, **common})
        events.append({"ph": "e", "ts": max(ended, fault["begun_s"]) * 1e6, **common})
    for node, t, cpus, memory, *_ in message["usage"]:
        for name, value in (("CPUs", cpus), ("memory (MiB)", memory / (1 << 20))):
            if value is not None:
                counter = {"name": name, "pid": pids.get(node, _RUN_PID), "args": {name: round(value, 3)}}
                events.append({"ph": "C", "ts": t * 1e6, **counter})
    return events


def _named(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _sorted(pid: int, index: int) -> dict[str, Any]:
    return {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": index}}


def _instant(name: str, t: float | None) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "ts": (t or 0.0) * 1e6, "pid": _RUN_PID, "tid": _RUN_TID}


def _place(pid: int, rank: int, row: int) -> dict[str, int]:
    """Return the process and the thread; no thread has the number of a process, which would make it the main one."""
    return {"pid": pid, "tid": _FIRST_TID + 2 * rank + row}


def _track(pid: int, rank: int, row: int, name: str) -> _Events:
    """Return the name of a track and its place among those of its node."""
    place = _place(pid, rank, row)
    index = {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": 2 * rank + row}}
    return [_named(pid, "thread_name", name, place["tid"]), index]
