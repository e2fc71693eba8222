"""A script from stdin is shown as Python shows it, wherever its temporary folder is."""

from __future__ import annotations

import json
import time

import pytest

from compose_sim.core.events.events import parse_event
from compose_sim.core.events.observations import parse_rank
from compose_sim.core.text import without_temporary_folder


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/tmp/composesim-8m6r1lqo/<stdin> --epochs 2", "<stdin> --epochs 2"),
        ('  File "/tmp/composesim-_a/<cell>", line 1\n  File "/x.py"', '  File "<cell>", line 1\n  File "/x.py"'),
        ("at=(/tmp/composesim-a/<stdin>, /tmp/composesim-b/<stdin>)", "at=(<stdin>, <stdin>)"),
        ("/tmp/composesim-a/train.py", "/tmp/composesim-a/train.py"),
        ("/home/a/<stdin>", "/home/a/<stdin>"),
    ],
)
def test_the_temporary_folder_is_left_out(text: str, shown: str) -> None:
    assert without_temporary_folder(text) == shown


def test_events_and_observations_are_read_without_it() -> None:
    file = "/tmp/composesim-8m6r1lqo/<stdin>"
    data = {"since_s": 15.0, "doing": "sleeping", "frames": [[file, 7, "<module>"]]}
    line = json.dumps({"v": 1, "t": time.time(), "kind": "stalled", "data": data})
    entered = json.dumps({"kind": "collective", "op": "barrier", "group": [0, 1], "name": "0", "at": [file, 5]})

    event, (record,) = parse_event(line), parse_rank("node-0", 0, [entered]).records

    assert event
    assert event.data["frames"] == [["<stdin>", 7, "<module>"]]
    assert list(vars(record)["at"]) == ["<stdin>", 5]
