"""Lines that are no record are dropped and counted; records of older and newer writers are read as far as possible."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from compose_sim.core.events.observations import parse_rank
from compose_sim.node.rank.observations import encode
from compose_sim.node.records import KINDS
from compose_sim.node.records.data import LoaderInfo, RandomDraws, Sampling
from compose_sim.node.records.models import OptimizerStep, SteppedModel, TensorRow, TensorTable
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd

NESTED: list[Record] = [
    LoaderInfo(0, "Pictures", made=("train.py", 3), samplers=("A", "B"), sampling=Sampling(rank=1, shuffle=True)),
    OptimizerStep(4, 0, 4, ("train.py", 9), (SteppedModel(0, 1, 1, 2, new=("head.weight",)),)),
    TensorTable(0, 0, (TensorRow("parameter", None, "weight", (2, 3), "float32", "cpu"),)),
    RandomDraws(0, 1, 2, states={"torch": (5, 6)}),
]


@pytest.mark.parametrize("record", NESTED, ids=lambda record: record.kind)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    (read,) = parse_rank("node-1", 3, [encode(record, 12.5)]).records

    assert vars(read) == {**vars(record), "rank": 3, "index": 0, "t": 12.5}


def test_every_kind_can_be_read() -> None:
    lines = [f'{{"kind": "{kind}", "t": "late"}}' for kind in KINDS]

    assert parse_rank("node-0", 0, lines).dropped == len(KINDS)
    assert all(get_type_hints(record) for record in KINDS.values())


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    (end,) = parse_rank("node-0", 0, ['{"kind": "script-end", "t": 1.0, "steps": 3, "later": [1]}']).of(ScriptEnd)

    assert (end.steps, end.raised) == (3, None)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "script-end", "ste',
        "[]",
        '{"kind": "unheard-of"}',
        '{"kind": ["script-end"]}',
        '{"kind": "script-end", "steps": "3"}',
        '{"kind": "script-end", "steps": true}',
        '{"kind": "script-end", "t": null}',
        f'{{"kind": "loss-value", "value": 1{"0" * 400}}}',
        '{"kind": "raised-after-training"}',
        '{"kind": "raised-after-training", "at": ["train.py", 1, 2]}',
        '{"kind": "epoch-progress", "loader": 0, "epoch": 0, "phase": "eaten"}',
        '{"kind": "tensor-table", "optimizer": 0, "table": 0, "rows": [["parameter"]]}',
        '{"kind": "random-draws", "loader": 0, "epoch": 0, "fetch": 0, "states": {"torch": 5}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_record_is_dropped_and_counted(line: str) -> None:
    seen = parse_rank("node-0", 0, [line, encode(ScriptEnd(steps=1), 1.0)])

    assert (seen.dropped, [type(each) for each in seen.records]) == (1, [ScriptEnd])


def test_numbers_of_other_libraries_are_written_as_plain_numbers() -> None:
    class Number:
        def item(self) -> Any:
            return 7

    (end,) = parse_rank("node-0", 0, [encode(ScriptEnd(steps=Number()), 1.0)]).of(ScriptEnd)

    assert end.steps == 7
