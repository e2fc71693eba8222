"""Right: goes from a rank that waits to one that it waits for, until a rank waits for nobody."""

import json
from collections import Counter
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
    ranks_of = {name: json.loads(each["ranks"]) for dump in dumps.values() for name, each in dump["pg_config"].items()}
    own = {rank: {key_of(entry): entry for entry in dump["entries"]} for rank, dump in dumps.items()}
    for key in sorted({key for entries in own.values() for key in entries}):
        calls = {rank: what(entries[key]) for rank, entries in own.items() if key in entries}
        usual = Counter(calls.values()).most_common(1)[0][0]
        if odd := [rank for rank in calls if calls[rank] != usual]:
            return Finding(odd, *key, *place_of(own[odd[0]][key]))
    waits_in = {rank: key for rank, entries in own.items() for key in entries if is_pending(entries[key])}
    rank = next(iter(waits_in))
    while rank in waits_in:
        waiting, key = rank, waits_in[rank]
        missing = [each for each in ranks_of[key[0]] if key not in own.get(each, {})]
        rank = next((each for each in missing if each in waits_in), missing[0])
    return Finding(missing, *key, *place_of(own[waiting][key]))


def key_of(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["process_group"][0], entry["collective_seq_id"]


def what(entry: dict[str, Any]) -> str:
    return f"{entry['profiling_name']} {entry['input_sizes']}"


def is_pending(entry: dict[str, Any]) -> bool:
    return not (entry["retired"] or entry["state"] == "completed")


def place_of(entry: dict[str, Any]) -> tuple[str, int]:
    own = [each for each in entry["frames"] if "/torch/" not in each["filename"]]
    return own[0]["filename"], own[0]["line"]
