"""Define events, and read them from lines of text.

Nodes, the master and composesim itself append events as JSON lines. Live view, verdict and report are folds over them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compose_sim.core.json_values import MAX_NUMBER
from compose_sim.core.text import without_temporary_folder

MAX_LINE = 1 << 20  # characters; the longest real event is a stack dump of a few kilobytes

# An operating system command, any other sequence of a terminal, a single control character, half of a surrogate pair, or what
# changes the direction of text.
_UNSAFE = re.compile(
    r"\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\\\)?|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = (int, float)
_TEXTS = ("list", str)
_FRAME = ("row", str, int, str)  # file, line, function
_PLACE = ("row", str, int, str, str)  # and the text of the line
_PENDING = {"op": str, "number": int, "group": str, "ranks": ("list", int), "sizes": str, "at": ("row", str, int)}
_EXIT: Mapping[str, Any] = {"exit_code": int}
_WHEREABOUTS: Mapping[str, Any] = {
    **{"since_s": _NUMBER, "doing": str, "waiting_in": str, "place": _PLACE, "frames": ("list", _FRAME)},
    **{"threads": ("list", _PLACE), "workers": ("list", ("fields", {"pid": int, "doing": str, "place": _PLACE}))},
    **{"locked_in_c": bool, "steps": int, "collectives": int, "batches": int},
    **{"on_device": bool, "reached": ("dict", int)},
    **dict.fromkeys(("pending", "recent"), ("list", ("fields", _PENDING))),
}

# Kind -> field -> type. ("list", T) is a list of T, ("dict", T) maps names to T, ("row", T, …) is a list of exactly
# these, ("fields", {…}) an object with these. None is allowed for every field.
DATA: Mapping[str, Mapping[str, Any]] = {
    "started": {
        **{"version": str, "host": str, "cpus": _NUMBER, "memory_bytes": int},
        **{"engine": str, "driver": str, "image_digest": str},
    },
    "stopping": {"reason": str, "cause": str, "message": str, "traceback": str},
    "verdict": {"verdict": str, "last_t": _NUMBER},
    "note": {"message": str},
    "node-started": {"pid": int, "hostname": str, "launcher": str, "python": str, "executable": str},
    "node-exited": _EXIT,
    "node-stopped": {**_EXIT, "oom": bool},
    "node-joined": {"node": str, "node_rank": int, "nproc": int},
    "node-lost": {"node": str, "reason": str, "injected": bool},
    "master-started": {"port": int, "pid": int},
    "connection-refused": {"address": str, "reason": str},
    "ended": {**_EXIT, "passed": bool, "reason": str},
    "ready": {"words": str},
    "round": {"world_size": int, "nodes": _TEXTS, "restart_count": int, "because": str},
    "rendezvous": {
        **{"world_size": int, "nodes": _TEXTS, "restart_count": int, "logs": ("dict", int)},
        **{"master_addr": str, "master_port": int},
    },
    "start-failed": {"message": str, "hint": str, "gap": bool},
    "rank-started": {"pid": int, "local_rank": int},
    "rank-exited": {
        **{**_EXIT, "signal": int, "oom": bool, "no_process_ids": bool, "stopped": bool, "reason": str},
        **{"words": _TEXTS},
    },
    "usage": {
        **{"cpu_s": _NUMBER, "memory_bytes": int, "memory_limit_bytes": int, "received_bytes": int, "sent_bytes": int},
        **{"gpu_use": _NUMBER, "gpu_memory_bytes": int},
    },
    "gpus": {"planned": _TEXTS, "visible": _TEXTS, "mps": bool, "message": str, "seconds": _NUMBER},
    "mps": {"phase": str, "seconds": _NUMBER, "message": str},
    "service": {**_EXIT, "name": str, "phase": str, "words": str},
    "environment": {name: str for name in ("torch", "cuda", "nccl", "python", "platform", "paddle")},
    "init": {"phase": str, "backend": str, "world_size": int},
    "feature-off": {"feature": str, "message": str},
    "step": {"step": int},
    "waited": {"what": str, "seconds": _NUMBER},
    "breakpoint": {"phase": str, "file": str, "line": int, "socket": str},
    "profiled": {"file": str, "first": int, "steps": int, "lag": _NUMBER, "why": str},
    "exception": {"type": str, "message": str, "traceback": str, "hint": str, "gap": str},
    "script-ended": {**_EXIT, "message": str},
    "stalled": _WHEREABOUTS,
    "dumped": _WHEREABOUTS,
    "hang": {"message": str, "traceback": str, "final": bool},
    "fault": {
        **{"id": str, "phase": str, "kind": str, "nodes": _TEXTS, "rank": int, "text": str},
        **{"for_s": _NUMBER, "loses": _TEXTS, "lasts": bool},
    },
    "heal": {"id": str, "phase": str},
    "link": {"id": str, "links": _TEXTS, "text": str},
    "scale": {"id": str, "nodes": int, "names": _TEXTS},
    "refused": {"id": str, "message": str, "evidence": str, "hint": str, "exit_code": int},
    "recovered": {
        **{"id": str, "cause": str, "seconds": _NUMBER, "world_size": int, "steps_lost": int, "generation": int},
    },
    "command": {"id": str, "phase": str, "why": str},
    "log": {"line": str},
    "numbers": {"step": int, "values": ("dict", _NUMBER)},
}

# Fields without which an event is useless.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "round": ("world_size", "nodes"),
    "node-lost": ("node",),
    "fault": ("id", "phase", "kind", "text"),
    "heal": ("id", "phase"),
    "link": ("id", "links"),
    "scale": ("id", "names"),
    "refused": ("id", "message"),
    "recovered": ("seconds", "world_size"),
    "command": ("id", "phase"),
    "waited": ("what", "seconds"),
    "numbers": ("values",),
    "service": ("name", "phase"),
    "feature-off": ("feature", "message"),
}


def _refuse(text: str) -> None:
    raise ValueError(text)


def read_object(line: str, *, non_finite: Callable[[str], Any] = _refuse) -> dict[str, Any] | None:
    """
    Return the JSON object on an untrusted line, its texts printable; None for anything else.

    None as well for a line that is too long or too deeply nested, and for an integer beyond 64 bits. `non_finite` makes a value of
    NaN, Infinity and numbers too large for a float; by default they are refused.
    """
    if len(line) > MAX_LINE:
        return None

    def number(text: str) -> Any:
        value = float(text)
        return value if math.isfinite(value) else non_finite(text)

    try:
        value = json.loads(
            without_temporary_folder(line), parse_constant=non_finite, parse_float=number, parse_int=bounded_integer
        )
        return _printable_values(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def is_valid(kind: str, data: Mapping[str, Any]) -> bool:
    """Return whether every field of `data` that the kind defines has the defined type, or is None if it is not required."""
    if any(data.get(name) is None for name in REQUIRED.get(kind, ())):
        return False
    return all(_matches(data.get(name), wanted) for name, wanted in DATA.get(kind, {}).items())


def printable(text: str) -> str:
    """
    Return text that cannot act on a terminal: of all control characters only newlines, tabs and colors (SGR) remain.

    If a progress bar has rewritten a line with carriage returns, the last state of the line remains, as on a terminal.
    """
    if not _UNSAFE.search(text):
        return text
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _UNSAFE.sub(lambda match: match[0] if _COLOR.fullmatch(match[0]) else "", "\n".join(lines))


def _printable_values(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable_values(each) for each in value]
    if isinstance(value, dict):
        return {printable(name): _printable_values(each) for name, each in value.items()}
    return value


def _matches(value: Any, wanted: Any) -> bool:
    if value is None:
        return True
    if wanted is int or wanted is _NUMBER:
        return isinstance(value, wanted) and not isinstance(value, bool)
    if not isinstance(wanted, tuple):
        return isinstance(value, wanted)
    form, *parts = wanted
    if form == "list":
        return isinstance(value, list) and all(_matches(each, parts[0]) for each in value)
    if form == "dict":
        return isinstance(value, dict) and all(_matches(each, parts[0]) for each in value.values())
    if form == "row":
        right = isinstance(value, list) and len(value) == len(parts)
        return right and all(each is not None and _matches(each, part) for each, part in zip(value, parts, strict=True))
    return isinstance(value, dict) and all(_matches(value.get(name), part) for name, part in parts[0].items())


def bounded_integer(text: str) -> int:
    """Return the integer; raise ValueError if it needs more than 64 bits."""
    if len(text) > len(str(-MAX_NUMBER)) or abs(number := int(text)) > MAX_NUMBER:
        raise ValueError(text)
    return number


# Writer -> the kinds of events that the file may hold. A node's agent and ranks share a file, NODE.jsonl.
KINDS_OF: Mapping[str, frozenset[str]] = {
    "composesim": frozenset(
        {
            *("started", "node-stopped", "hang", "stopping", "verdict", "note", "service"),
            *("fault", "heal", "link", "scale", "recovered", "refused"),  # what a user does to the run
        }
    ),
    "master": frozenset(
        {"master-started", "node-joined", "node-lost", "round", "ready", "ended", "connection-refused"}
    ),
    "mps": frozenset({"mps"}),
    "node": frozenset(
        {
            *(
                "node-started",
                "rendezvous",
                "rank-started",
                "rank-exited",
                "usage",
                "node-exited",
                "stalled",
                "resumed",
                "halted",
                "continued",
                "dumped",
            ),
            *("gpus", "start-failed", "command"),
            *(
                "environment",
                "feature-off",
                "init",
                "step",
                "waited",
                "breakpoint",
                "profiled",
                "exception",
                "script-ended",
            ),  # by the ranks
        }
    ),
}
READ_FROM_LOGS = frozenset({"log", "metric", "numbers"})  # from the output of ranks; not in any event file
KINDS = frozenset[str]().union(READ_FROM_LOGS, *KINDS_OF.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened: `t` in Unix seconds, `data` by kind (see docs/events.md)."""

    t: float
    kind: str
    node: str | None = None
    rank: int | None = None
    generation: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, run: str) -> str:
        """Return the event as one line of an event file."""
        fields = {"v": 1, "t": self.t, "run": run, "node": self.node, "rank": self.rank}
        return json.dumps(fields | {"generation": self.generation, "kind": self.kind, "data": dict(self.data)})


def parse_event(line: str) -> Event | None:
    """Return the event on an untrusted line; None if it is torn, of an unknown kind, or has a field of the wrong type."""
    fields = read_object(line)
    kind = fields.get("kind") if fields else None
    if not fields or not isinstance(kind, str) or kind not in KINDS or not isinstance(fields.get("t"), int | float):
        return None
    node, rank, generation = (fields.get(name) for name in ("node", "rank", "generation"))
    data = fields.get("data") or {}
    numbers = [each for each in (rank, generation) if each is not None]
    if not isinstance(data, dict) or not isinstance(node, str | None) or not is_valid(kind, data):
        return None
    if not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in numbers):
        return None
    return Event(t=fields["t"], kind=kind, node=node, rank=rank, generation=generation, data=data)


def parse_file_event(line: str, writer: str) -> Event | None:
    """
    Return the event on a line of `writer`.jsonl; None as well if that writer may not report it.

    Nodes report only about themselves: if a rank writes another node's end into its node's file, the event is ignored.
    """
    event = parse_event(line)
    if event is None or event.kind not in KINDS_OF.get(writer, KINDS_OF["node"]):
        return None
    return event if writer in KINDS_OF or event.node == writer else None


def parse_metric(line: str) -> dict[str, Any] | None:
    """
    Return the metric on a line of a rank's output: a JSON object with an integer `step`; None for any other line.

    JSON has no NaN and no Infinity: they become texts.
    """
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}") and '"step"' in text):
        return None
    metric = read_object(text, non_finite=str)
    step = metric.get("step") if metric else None
    return metric if isinstance(step, int) and not isinstance(step, bool) else None
