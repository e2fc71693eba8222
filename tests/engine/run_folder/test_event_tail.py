"""The tail of a run folder assigns each line to the round in which it was printed, whenever it is read."""

from __future__ import annotations

import json
import math
import os
import threading
from itertools import accumulate, chain
from pathlib import Path

import pytest

from compose_sim.core.events.events import Event
from compose_sim.engine.run_folder.event_tail import EventTail
from compose_sim.engine.run_folder.record import read_events
from compose_sim.node.shared.event_log import RunClock
from compose_sim.node.shared.rank_logs import STAMP


def tell_round(folder: Path, generation: int, logs: dict[str, int]) -> None:
    """Return what a node's agent writes when a round begins."""
    event = {"v": 1, "t": 1.0 + generation, "node": "node-0", "rank": None, "generation": generation}
    (folder / "events").mkdir(exist_ok=True)
    with (folder / "events" / "node-0.jsonl").open("a") as file:
        file.write(json.dumps({**event, "kind": "rendezvous", "data": {"world_size": 1, "logs": logs}}) + "\n")


def rank_prints(folder: Path, text: str) -> int:
    """Append to the log of rank 0, and return the number of bytes before."""
    (folder / "logs").mkdir(exist_ok=True)
    path = folder / "logs" / "node-0.0.log"
    size = path.stat().st_size if path.exists() else 0
    with path.open("a") as file:
        file.write(text)
    return size


def test_a_line_counts_to_the_round_in_which_it_was_printed(tmp_path: Path) -> None:
    """A log continues through all rounds, and is read when they are long over."""
    tell_round(tmp_path, 0, {"0": 0})
    rank_prints(tmp_path, '{"step": 1, "loss": 0.5}\nwörds\n{"step": 2}\n')
    tell_round(tmp_path, 1, {"0": (tmp_path / "logs" / "node-0.0.log").stat().st_size})
    rank_prints(tmp_path, '{"step": 2}\nno newline')
    tail = EventTail(tmp_path, None)
    events = [*chain.from_iterable(tail.finish())]
    tail.close()

    metrics = [(event.generation, event.data["step"]) for event in events if event.kind == "metric"]
    lines = [(event.generation, event.data["line"]) for event in events if event.kind == "log"]
    assert metrics == [(0, 1), (0, 2), (1, 2)]
    assert lines[1] == (0, "wörds")
    assert lines[-1] == (1, "no newline")


def test_a_line_read_as_its_round_begins_counts_to_it(tmp_path: Path) -> None:
    tail = EventTail(tmp_path, None)
    tell_round(tmp_path, 0, {"0": 0})
    rank_prints(tmp_path, "half a line, ")
    first = tail.poll()
    size = rank_prints(tmp_path, "and the rest\n") + len("and the rest\n")
    tell_round(tmp_path, 1, {"0": size})
    rank_prints(tmp_path, '{"step": 3}\n')
    second = tail.poll()
    tail.close()

    assert [event.kind for event in first] == ["rendezvous"]
    assert [(event.generation, event.data["line"]) for event in second if event.kind == "log"] == [
        (0, "half a line, and the rest"),
        (1, '{"step": 3}'),
    ]


def test_a_log_of_which_no_node_says_where_rounds_begin_is_of_no_round(tmp_path: Path) -> None:
    rank_prints(tmp_path, '{"step": 3}\n')
    tail = EventTail(tmp_path, None)
    events = [*chain.from_iterable(tail.finish())]
    tail.close()

    assert [(event.kind, event.generation) for event in events] == [("log", None), ("metric", None)]


def test_lines_are_searched_for_numbers_only_if_asked(tmp_path: Path) -> None:
    rank_prints(tmp_path, '{"step": 3}\nstep 4: loss=0.5\n')

    kinds = {}
    for numbers in (True, False):
        tail = EventTail(tmp_path, None, numbers=numbers)
        kinds[numbers] = [event.kind for event in chain.from_iterable(tail.finish())]
        tail.close()

    assert kinds == {True: ["log", "metric", "log", "numbers"], False: ["log", "log"]}


def test_much_output_comes_in_batches(tmp_path: Path) -> None:
    """Each line becomes an object, so that all lines of a long run would fill the memory."""
    lines = [f"line {number} {'-' * 80}" for number in range(120_000)]
    rank_prints(tmp_path, "\n".join(lines))
    tail = EventTail(tmp_path, None)
    sizes, read = [], []
    for batch in tail.finish():
        sizes.append(sum(len(event.data["line"]) for event in batch))
        read += [event.data["line"] for event in batch]
    tail.close()

    assert read == lines
    assert max(sizes) <= 1 << 20


def finished(folder: Path) -> list[Event]:
    tail = EventTail(folder, None)
    events = [*chain.from_iterable(tail.finish())]
    tail.close()
    return events


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    """So that what a node writes without a newline does not fill the memory."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node-0.0.log").write_bytes(b"x" * (3 << 20))

    lines = [event.data["line"] for event in finished(tmp_path)]

    assert len(lines) >= 2
    assert sum(map(len, lines)) == 3 << 20


def test_a_hole_in_a_log_is_skipped(tmp_path: Path) -> None:
    """A rank can make one of terabytes in no time, which would take hours to read."""
    tell_round(tmp_path, 0, {"0": 0})
    rank_prints(tmp_path, "before\n")
    os.truncate(tmp_path / "logs" / "node-0.0.log", 1 << 40)
    tell_round(tmp_path, 1, {"0": 1 << 40})
    rank_prints(tmp_path, "\nafter\n")

    lines = [(each.generation, each.data["line"]) for each in finished(tmp_path) if each.kind == "log"]

    assert (lines[0], lines[-1]) == ((0, "before"), (1, "after"))


def test_the_end_of_a_run_does_not_wait_for_a_writer_that_goes_on(tmp_path: Path) -> None:
    """Such as a process that left its node's session."""
    (tmp_path / "events").mkdir()
    event = json.dumps({"v": 1, "t": 1.0, "kind": "usage", "node": "node-0", "data": {}}) + "\n"
    path = tmp_path / "events" / "node-0.jsonl"
    path.write_text(event)
    over = threading.Event()

    def write() -> None:
        with path.open("a") as file:
            while not over.wait(0.001):
                file.write(event * 100)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        events = finished(tmp_path)
    finally:
        over.set()
        writer.join()

    assert {each.kind for each in events} == {"usage"}
    assert 0 < len(events) <= path.stat().st_size / len(event)


def test_composesim_is_not_believed_where_nodes_write(tmp_path: Path) -> None:
    line = json.dumps({"v": 1, "t": 1.0, "kind": "verdict", "node": None, "data": {"verdict": "passed"}}) + "\n"
    for folder in ("events", "journal"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "composesim.jsonl").write_text(line)

    assert len(finished(tmp_path)) == 1
    assert len(read_events(tmp_path)) == 1


def log_with_stamps(folder: Path, stem: str, *parts: tuple[float, str]) -> None:
    """Write the log of a rank, as a node that read these parts of it at these times."""
    (folder / "logs").mkdir(exist_ok=True)
    offsets = accumulate((len(text) for _, text in parts), initial=0)
    stamps = [STAMP.pack(offset, t) for offset, (t, _) in zip(offsets, parts, strict=False)]
    (folder / "logs" / f"{stem}.log").write_text("".join(text for _, text in parts))
    (folder / "logs" / f"{stem}.times").write_bytes(b"".join(stamps))


def lines_in(folder: Path) -> list[tuple[float, str]]:
    tail = EventTail(folder, None)
    lines = [(event.t, event.data["line"]) for events in tail.finish() for event in events if event.kind == "log"]
    tail.close()
    return lines


def test_lines_of_several_ranks_are_merged_by_the_time_at_which_they_were_printed(tmp_path: Path) -> None:
    log_with_stamps(tmp_path, "node-0.0", (10.0, "a\n"), (13.0, "b\nc"), (14.0, "c\n"), (90.0, "last words"))
    log_with_stamps(tmp_path, "node-1.1", (11.0, "d\n"), (80.0, "e\n"))

    assert lines_in(tmp_path) == [
        (10.0, "a"),
        (11.0, "d"),
        (13.0, "b"),
        (13.0, "cc"),
        (80.0, "e"),
        (90.0, "last words"),
    ]


@pytest.mark.parametrize(
    "stamps",
    [STAMP.pack(0, math.nan), STAMP.pack(0, math.inf), STAMP.pack(-5, 1.0), STAMP.pack(5, 1.0), b"\0" * 7, b""],
)
def test_a_line_without_a_valid_stamp_has_the_time_at_which_it_was_read(tmp_path: Path, stamps: bytes) -> None:
    log_with_stamps(tmp_path, "node-0.0", (10.0, "a\n"))
    (tmp_path / "logs" / "node-0.0.times").write_bytes(stamps)
    before = RunClock.begin().now()

    assert [t >= before - 1 for t, _ in lines_in(tmp_path)] == [True]


def test_a_hole_in_the_stamps_costs_nothing(tmp_path: Path) -> None:
    log_with_stamps(tmp_path, "node-0.0", *((10.0, f"{line}\n") for line in range(1000)))
    os.truncate(tmp_path / "logs" / "node-0.0.times", 1 << 36)

    assert len(lines_in(tmp_path)) == 1000


def test_what_a_node_wrote_is_not_read_after_its_stop(tmp_path: Path) -> None:
    """On a busy machine, a node ends while its file is being read."""

    def stopped() -> list[Event]:
        tell_round(tmp_path, 0, {})
        return [Event(t=9.0, kind="node-stopped", node="node-0")]

    tail = EventTail(tmp_path, None, own=stopped)
    events = tail.poll()
    tail.close()

    assert [event.kind for event in events] == ["rendezvous", "node-stopped"]
