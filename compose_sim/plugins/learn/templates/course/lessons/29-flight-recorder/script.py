"""Read what torch's flight recorder holds after a hang. harness.py calls this with the dumps of hangs of several kinds."""

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
    newest = {rank: dump["entries"][-1] for rank, dump in dumps.items()}
    behind = min(newest, key=lambda rank: newest[rank]["collective_seq_id"])
    entry = newest[behind]
    frame = entry["frames"][0]
    return Finding([behind], entry["process_group"][0], entry["collective_seq_id"], frame["filename"], frame["line"])
