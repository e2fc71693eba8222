"""Which ranks left a loop that others are still in."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.collective_mismatch import judge
from compose_sim.core.checks.source.departures import departure
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import collective, two_nodes
from tests.core.checks.rules.replicas import step

SOURCE = """\
for epoch in range(9):
    for batch in loader:
        if too_bad(batch):
            {exit}
        dist.all_reduce(loss)
        optimizer.step()
dist.barrier()
"""


def reduced(count: int) -> list[Record]:
    return [each for nth in range(1, count + 1) for each in (collective("all_reduce", 1, line=5), step(nth))]


@pytest.mark.parametrize("exit", ["continue", "break", "return"])
def test_the_only_exit_is_named_with_its_line(exit: str) -> None:
    ended = [*reduced(3), collective("barrier", line=7)]
    case = two_nodes(
        lambda rank: ended if rank == 2 else [*reduced(3), collective("all_reduce", 1, line=5)],
        verdict="hung",
        sources={"train.py": SOURCE.format(exit=exit)},
    )
    found = departure(case)

    assert found is not None
    assert (found.left, found.at) == ((2,), ("/work/train.py", 4))
    assert f"`{exit}` in line 4" in found.text
    assert "made 3 steps" in found.text


def test_a_rank_that_reached_its_end_left_the_loop() -> None:
    case = two_nodes(
        lambda rank: [*reduced(3), ScriptEnd()] if rank == 1 else [*reduced(3), collective("all_reduce", 1, line=5)],
        sources={"train.py": SOURCE.format(exit="break")},
    )
    result = judge(case)

    assert (result.status, result.ranks, result.at) == ("failed", (1,), ("/work/train.py", 4))


def test_nothing_is_said_without_the_source_or_if_all_are_in_the_loop() -> None:
    records = [*reduced(3), collective("all_reduce", 1, line=5)]

    assert departure(two_nodes(lambda _: records, verdict="hung", sources={"train.py": SOURCE})) is None
    assert departure(two_nodes(lambda rank: records[: 7 - rank], verdict="hung")) is None
