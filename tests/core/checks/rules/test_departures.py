"""Which ranks left a loop that others are still in."""

from __future__ import annotations

import pytest

from compose_sim.core.checks.rules.collectives import collective_mismatch
from compose_sim.core.checks.rules.progress import departure
from compose_sim.core.verdict.stalled_rank import Spot, Standing
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import WORLD, at, collective, two_nodes
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
    result = collective_mismatch.judge(case)  # as many collectives on each rank, but not the same
    assert (result.ranks, at(result)) == (found.left, found.at)
    assert result.detail.startswith(found.text)


def test_a_loop_counts_that_calls_the_function_in_which_ranks_wait() -> None:
    source = "def average():\n    dist.all_reduce(grad)\n" + SOURCE.format(exit="break").replace(
        "dist.all_reduce(loss)", "average()"
    )

    def standing(rank: int) -> Standing:
        lines = [(9, "<module>")] if rank == 2 else [(2, "average"), (7, "<module>")]
        frames = tuple(("/work/train.py", line, function) for line, function in lines)
        return Standing(rank=rank, node="node-0", frames=frames, spot=Spot(file="/work/train.py", line=lines[0][0]))

    ended = [*reduced(3), collective("barrier", line=9)]
    case = two_nodes(
        lambda rank: ended if rank == 2 else [*reduced(3), collective("all_reduce", 1, line=2)],
        verdict="hung",
        sources={"train.py": source},
        stalls=tuple(map(standing, WORLD)),
    )
    found = departure(case)

    assert found is not None
    assert (found.left, found.at) == ((2,), ("/work/train.py", 6))
    assert found.text.endswith("made 3 and wait in line 2")


def test_a_rank_that_reached_its_end_left_the_loop() -> None:
    case = two_nodes(
        lambda rank: [*reduced(3), ScriptEnd()] if rank == 1 else [*reduced(3), collective("all_reduce", 1, line=5)],
        sources={"train.py": SOURCE.format(exit="break")},
    )
    result = collective_mismatch.judge(case)

    assert (result.status, result.ranks, at(result)) == ("failed", (1,), ("/work/train.py", 4))


def test_nothing_is_said_without_the_source_or_if_all_are_in_the_loop() -> None:
    records = [*reduced(3), collective("all_reduce", 1, line=5)]

    assert departure(two_nodes(lambda _: records, verdict="hung", sources={"train.py": SOURCE})) is None
    assert departure(two_nodes(lambda rank: records[: 7 - rank], verdict="hung")) is None
