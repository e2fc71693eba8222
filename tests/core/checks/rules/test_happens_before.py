"""What the collectives between two ranks order, and a search that need not look at every pair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.checks.rules.checkpoints import HappensBefore
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.process_groups import UntrackedWait
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import collective, file, observe

# A run of three ranks, as a list of turns: all meet, two of them meet, or one rank uses a file or waits for a message.
TURNS = st.lists(st.sampled_from(["all", "01", "12", "0f", "1f", "2f", "0w", "1w"]), max_size=40)


@given(turns=TURNS)
def test_the_search_finds_every_pair_that_may_overlap(turns: list[str]) -> None:
    records: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    for turn in turns:
        if turn[1] in "fw":
            records[int(turn[0])].append(file("write") if turn[1] == "f" else UntrackedWait("recv"))
        else:
            group = (0, 1, 2) if turn == "all" else (int(turn[0]), int(turn[1]))
            for rank in group:
                records[rank].append(collective("barrier", group=group, name=turn))
    observed = Observed(ranks={rank: observe(rank, each) for rank, each in records.items()})
    order = HappensBefore(observed)
    uses = {rank.rank: list(rank.of(FileUse)) for rank in observed}

    for one in uses[0]:
        for others in (uses[1], uses[2]):
            found = [each.index for each in order.overlapping(one, others)]
            assert found == [each.index for each in others if order.may_overlap(one, each)]
