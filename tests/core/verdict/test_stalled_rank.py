"""Hangs of ranks whose collectives have been issued and have not completed, as torch's flight recorder shows them."""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.state.fold import fold_all
from compose_sim.core.verdict.hang import find_hang
from tests.core.verdict.test_hang import PLAN, running, stalled

AT = ["/home/ada/project/train.py", 12]


def pending(op: str = "all_reduce", number: int = 26, **changes: Any) -> dict[str, Any]:
    values = {"op": op, "number": number, "group": "0", "ranks": [0, 1, 2], "sizes": "[[4]]", "at": AT}
    return {**values, **changes}


def spins(*issued: dict[str, Any], reached: int = 26) -> dict[str, Any]:
    """Return what a rank reports whose main thread spins while its GPU waits."""
    return {"doing": "", "on_device": True, "pending": list(issued), "reached": {"0": reached}}


def found_in(*data: dict[str, Any]) -> str:
    events = [stalled(rank, **each) for rank, each in enumerate(data)]
    found = find_hang(fold_all(PLAN, [*running(), *events]), PLAN, now=120.0)
    return found.message if found else ""


def test_the_rank_that_did_not_issue_what_the_others_spin_for_is_the_culprit() -> None:
    asleep = {"doing": "sleeping", "on_device": True, "reached": {"0": 25}}
    assert found_in(spins(pending()), spins(pending(at=None)), asleep) == (
        "rank 2 on node-2 sleeps at train.py, line 40: `x()`, while rank 0 waits for it in all_reduce #26 (train.py, line 12)"
        " and rank 1 waits for it in all_reduce #26 (train.py, line 40)"
    )


def test_a_rank_in_destroy_process_group_is_named_if_others_still_wait_for_a_collective() -> None:
    leaves = {"doing": "", "on_device": True, "reached": {"0": 25}}
    message = found_in(spins(pending()), leaves, leaves)
    assert message.startswith(
        "rank 1 on node-1 is at train.py, line 40: `x()`, while rank 0 waits for it in all_reduce #26"
    )


def test_ranks_that_issued_different_collectives_wait_for_each_other() -> None:
    message = found_in(spins(pending()), spins(pending()), spins(pending("broadcast")))
    assert message.startswith(
        "rank 2 waits in broadcast #26 (train.py, line 12), while ranks 0, 1 wait in all_reduce #26"
    )


@pytest.mark.parametrize("number", [26, 27])
def test_a_collective_that_all_ranks_issued_waits_for_kernels_and_is_no_hang(number: int) -> None:
    """Rank 2 has already gone on to the next one."""
    assert found_in(spins(pending()), spins(pending()), spins(pending(number=number), reached=number)) == ""


def test_a_collective_that_ranks_issued_with_different_sizes_never_completes() -> None:
    assert found_in(spins(pending()), spins(pending()), spins(pending(sizes="[[8]]")))


def test_a_message_without_its_counterpart_hangs_and_one_with_it_does_not() -> None:
    sends, receives = pending("send 0->1", 1), pending("recv 1<-0", 1)
    waits = {"doing": "", "on_device": True}
    assert "rank 0 waits for it in send 0->1 (train.py, line 12)" in found_in(spins(sends), waits, waits)
    assert found_in(spins(sends), spins(receives), waits) == ""


def test_without_a_gpu_a_collective_that_all_ranks_issued_is_a_hang() -> None:
    on_cpu = {**spins(pending()), "on_device": False}
    assert "ranks 0, 1, 2 wait in all_reduce #26" in found_in(on_cpu, on_cpu, on_cpu)


def test_a_rank_that_sleeps_does_not_wait_for_what_it_issued() -> None:
    asleep = {**spins(pending()), "doing": "sleeping", "on_device": False}
    waits = {**spins(pending()), "on_device": False}
    assert found_in(waits, waits, asleep).startswith("rank 2 on node-2 sleeps at train.py, line 40")


def test_a_collective_that_nccl_mistook_for_another_is_a_mismatch() -> None:
    """Rank 0 issued one more: NCCL completed it there, with the first numbers of what the others reduce."""
    extra = pending(number=25, sizes="[[1]]")
    ahead = {**spins(pending(number=26, sizes="[[9]]"), reached=26), "recent": [extra, pending(sizes="[[9]]")]}
    behind = pending(number=25, sizes="[[9]]", at=None)
    assert found_in(ahead, *({**spins(behind, reached=25), "recent": [behind]} for _ in range(2))) == (
        "rank 0 issued all_reduce #25 of [[1]] (train.py, line 12), but rank 1 all_reduce #25 of [[9]]: "
        "they wait for each other"
    )


def test_a_rank_that_leaves_waits_for_what_it_has_issued() -> None:
    frame = [["/torch/distributed/distributed_c10d.py", 2319, "destroy_process_group"], [*AT, "<module>"]]
    asleep = {"doing": "sleeping", "on_device": True, "reached": {"0": 25}}
    assert "rank 0 waits for it in all_reduce #26" in found_in({**spins(pending()), "frames": frame}, asleep, asleep)
