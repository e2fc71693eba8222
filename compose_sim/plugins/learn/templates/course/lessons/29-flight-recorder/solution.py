"""Read what torch's flight recorder holds after a hang: first look for calls that differ, then for who is missing."""

import json
from collections import Counter, defaultdict
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """Why the ranks of a job wait."""

    ranks: list[int]  # who is to blame
    group: str  # the name of the process group in which they are missed, or differ from most of it
    number: int  # of that collective in the group: its collective_seq_id
    file: str  # where those to blame issued it; if they did not, where the others wait
    line: int


def diagnose(dumps: dict[int, dict[str, Any]]) -> Finding:
    """Return why the ranks wait, from their dumps, by rank; a rank that has died has left none."""
    members: dict[str, set[int]] = {}
    issued: dict[tuple[str, int], dict[int, dict[str, Any]]] = defaultdict(dict)  # by group and number, and by rank
    for rank, dump in dumps.items():
        members |= {name: set(json.loads(each["ranks"])) for name, each in dump["pg_config"].items()}
        for entry in dump["entries"]:
            issued[entry["process_group"][0], entry["collective_seq_id"]][rank] = entry
    for key, entries in sorted(issued.items()):  # the first one that differs: those after it differ for this reason
        (usual, _), *others = Counter(map(call, entries.values())).most_common()
        if others:
            return finding([rank for rank, entry in entries.items() if call(entry) != usual], key, entries)
    pending = {key: entries for key, entries in issued.items() if any(map(waits, entries.values()))}
    waiting = {rank for entries in pending.values() for rank in entries if waits(entries[rank])}
    for key, entries in pending.items():
        missing = members[key[0]] - set(entries)
        if not missing & waiting:  # a rank that waits elsewhere is held up itself
            return finding(sorted(missing), key, entries)
    raise ValueError("nobody waits")


def call(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["profiling_name"], str(entry["input_sizes"])


def waits(entry: dict[str, Any]) -> bool:
    return not entry["retired"] and entry["state"] != "completed"


def finding(ranks: list[int], key: tuple[str, int], entries: dict[int, dict[str, Any]]) -> Finding:
    entry = entries.get(ranks[0]) or next(iter(entries.values()))
    frame = next(each for each in entry["frames"] if "/site-packages/" not in each["filename"])
    return Finding(ranks, *key, frame["filename"], frame["line"])
