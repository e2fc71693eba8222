"""Right: the counts in pg_status tell how far each rank has come in each group, whatever the recorder has lost."""

import json
from statistics import mode
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
    reached: dict[str, dict[int, int]] = {}  # the last number of each rank, by group
    stuck: dict[str, set[int]] = {}  # ranks of which the last one has not completed
    for rank, dump in dumps.items():
        for name, each in dump["pg_config"].items():
            for member in json.loads(each["ranks"]):
                reached.setdefault(name, {}).setdefault(member, 0)
        names = {str(entry["pg_id"]): entry["process_group"][0] for entry in dump["entries"]}
        for number, status in dump["pg_status"].items():
            if number in names:
                reached[names[number]][rank] = status["last_enqueued_collective"]
                if status["last_completed_collective"] < status["last_enqueued_collective"]:
                    stuck.setdefault(names[number], set()).add(rank)
    for group, last in reached.items():
        for number in range(1, max(last.values()) + 1):
            entries = entries_of(dumps, group, number)
            calls = {rank: f"{each['profiling_name']} {each['input_sizes']}" for rank, each in entries.items()}
            if odd := [rank for rank in calls if calls[rank] != mode(calls.values())]:
                return Finding(odd, group, number, *line_of(entries[odd[0]]))
    held_up = set().union(*stuck.values())
    for group in stuck:
        number = max(reached[group].values())
        absent = [rank for rank, last in reached[group].items() if last < number]
        if held_up.isdisjoint(absent):
            return Finding(absent, group, number, *line_of(entries_of(dumps, group, number)[min(stuck[group])]))
    raise ValueError("nothing explains this hang")


def entries_of(dumps: dict[int, dict[str, Any]], group: str, number: int) -> dict[int, dict[str, Any]]:
    """Return the entry of each rank whose recorder still has it."""
    return {
        rank: entry
        for rank, dump in dumps.items()
        for entry in dump["entries"]
        if (entry["process_group"][0], entry["collective_seq_id"]) == (group, number)
    }


def line_of(entry: dict[str, Any]) -> tuple[str, int]:
    return next((each["filename"], each["line"]) for each in entry["frames"] if "site-packages" not in each["filename"])
