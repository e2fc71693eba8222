"""Strips of samples show at a glance what two checks report: overlap between ranks, and a missing set_epoch."""

from __future__ import annotations

import json

from compose_sim.core.events.observations import Observed, parse_rank
from compose_sim.core.view.page import sample_strips


def rank(number: int, *epochs: list[list[int]]) -> list[str]:
    lines = [{"kind": "loader-info", "loader": 0, "data": "TensorDataset", "length": 8, "made": ["train.py", 5]}]
    for epoch, batches in enumerate(epochs):
        lines += [
            {"kind": "batch", "loader": 0, "epoch": epoch, "batch": n, "indices": batch}
            for n, batch in enumerate(batches)
        ]
    return [json.dumps(line) for line in lines]


def test_samples_that_are_drawn_twice_and_epochs_in_the_same_order_are_counted() -> None:
    lines = [rank(0, [[0, 1], [2]], [[0, 1], [2]]), rank(1, [[2, 3]], [[2, 3]])]
    observed = Observed(ranks={n: parse_rank(f"node-{n}", n, each) for n, each in enumerate(lines)})
    first, second = sample_strips(observed)

    assert (first["drawn"], first["distinct"], first["repeated"], first["as_before"]) == (5, 4, 1, False)
    assert first["ranks"] == {0: [0, 1, 2], 1: [2, 3]}
    assert (second["epoch"], second["as_before"], second["at"]) == (1, True, ["train.py", 5])


def test_a_strip_has_no_more_samples_than_pixels() -> None:
    observed = Observed(ranks={0: parse_rank("node-0", 0, rank(0, [list(range(5000))]))})
    (strip,) = sample_strips(observed)

    assert len(strip["ranks"][0]) == 480
    assert strip["drawn"] == 5000
