"""Write the timeline of a run as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from typing import Any

from compose_sim.core.view.page import Message

_ROW = {
    "data": 0,
    "forward": 0,
    "backward": 0,
    "optimizer": 0,
    "checkpoint": 0,
}  # thread 0 computes; thread 1 is in collectives
_RUN_PID = 0  # Perfetto sorts processes by index; the run comes first, then nodes


def chrome_trace(message: Message) -> dict[str, Any]:
    """Return the trace: a process per node, two threads per rank, and faults, rounds and hangs as events of the run."""
    now = message["now"]
    node_of = {rank: node["name"] for node in now["nodes"] for rank in node["ranks"]}
    node_of |= {each["rank"]: each["node"] for each in now["ranks"]}
    pids = {node["name"]: index for index, node in enumerate(now["nodes"], 1)}
    events = [_named(_RUN_PID, "process_name", f"run {now['run']}"), _sorted(_RUN_PID, 0)]
    for name, pid in pids.items():
        events += [_named(pid, "process_name", name), _sorted(pid, pid)]
    for rank, node in sorted(node_of.items()):
        for row, words in enumerate(("computes", "in collectives")):
            events.append(_named(pids.get(node, _RUN_PID), "thread_name", f"rank {rank} {words}", _thread(rank, row)))
    texts = ["", *message["texts"]]
    for rank, kind, began, lasted, step, text, late in message["spans"]:
        name = now["kinds"][kind]
        words = texts[text].partition(" #")[0]
        what = name if name in _ROW else f"{words}: {name}" if name != "collective" else words
        arguments = {"step": step, "what": texts[text], "waits for rank": late}
        events.append(
            {
                **{"ph": "X", "name": what, "cat": name, "ts": began, "dur": lasted},
                **{"pid": pids.get(node_of.get(rank, ""), _RUN_PID), "tid": _thread(rank, _ROW.get(name, 1))},
                "args": {key: value for key, value in arguments.items() if value not in (None, "")},
            }
        )
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": now["run"], "program": now["program"]},
        "traceEvents": events + _of_the_run(message),
    }


def _of_the_run(message: Message) -> list[dict[str, Any]]:
    """Return rounds as instants, faults as asynchronous events, since they overlap, and samples of usage as counters."""
    now, pids = message["now"], {node["name"]: index for index, node in enumerate(message["now"]["nodes"], 1)}
    events: list[dict[str, Any]] = [
        _instant(f"round {each['generation']}: {each['world_size']} ranks", each["began_s"]) for each in now["rounds"]
    ]
    if now["cause"]:
        events.append(_instant(f"{now['verdict']}: {now['cause']['message'].partition(chr(10))[0]}", now["t"]))
    for fault in now["faults"]:
        ended = fault["healed_s"] if fault["healed_s"] is not None else now["t"]
        common = {"cat": "fault", "name": fault["text"], "id": fault["id"], "pid": _RUN_PID, "tid": 0}
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
    return {"ph": "i", "s": "g", "name": name, "ts": (t or 0.0) * 1e6, "pid": _RUN_PID, "tid": 0}


def _thread(rank: int, row: int) -> int:
    return 2 * rank + row + 1
