"""How ranks divide a parameter is inferred from its values."""

from __future__ import annotations

import pytest
import torch

from compose_sim.node.rank.replay.layouts import Layout, infer, positions

WHOLE = torch.arange(96.0).reshape(12, 8)
FUSED = [torch.cat([part.chunk(2)[rank] for part in WHOLE.chunk(3)]) for rank in range(2)]


@pytest.mark.parametrize(
    ("held", "layout"),
    [
        ([WHOLE, WHOLE], Layout((0,))),
        (WHOLE.chunk(2), Layout((0, 1), 0)),
        (WHOLE.chunk(4, dim=1), Layout((0, 1, 2, 3), 1)),
        (FUSED, Layout((0, 1), 0, 3)),
        ([*WHOLE.chunk(2), *WHOLE.chunk(2)], Layout((0, 1), 0)),  # two replicas
        ([part for part in WHOLE.chunk(2) for _ in range(2)], Layout((0, 2), 0)),
        ([WHOLE[:6], WHOLE[5:11]], None),
        ([WHOLE, WHOLE + 1], None),
        ([WHOLE[:6], WHOLE[:6]], None),
    ],
)
def test_parts_are_found_along_any_dimension(held: list[torch.Tensor], layout: Layout | None) -> None:
    found = infer(WHOLE, held)

    assert found == layout
    if found is not None:
        assert torch.equal(found.joined(held), WHOLE)


def test_parts_that_look_alike_are_divided_as_others_are() -> None:
    zeros = torch.zeros(12)
    matrix = Layout((0, 1), 0)

    assert infer(zeros, zeros.chunk(4)) == Layout((0, 1, 2, 3), 0)
    assert infer(zeros, [*zeros.chunk(2), *zeros.chunk(2)]) is None
    assert infer(zeros, [*zeros.chunk(2), *zeros.chunk(2)], [matrix]) == matrix


def test_parts_that_look_alike_are_divided_as_the_parameter_before_them() -> None:
    zeros = torch.zeros(12)
    fused, plain = Layout((0, 1), 0, 3), Layout((0, 1), 0)

    assert infer(zeros, zeros.chunk(2), [plain, fused], fused) == fused
    assert infer(zeros, zeros.chunk(2), [plain, fused], plain) == plain
    assert infer(zeros, zeros.chunk(2), [plain, fused], Layout((0,))) is None  # nothing tells which of both
    assert infer(zeros, zeros.chunk(2), [fused]) == fused


def test_a_gradient_of_which_a_rank_has_no_part_is_none() -> None:
    assert Layout((0, 1), 0).joined([WHOLE[:6], None]) is None
    assert Layout((0,)).joined([None, WHOLE]) is None


def test_rows_may_be_dealt_out_and_padded() -> None:
    dealt = [WHOLE[rank::5] for rank in range(5)]
    padded = [WHOLE[:7], torch.cat([WHOLE[7:], torch.ones(2, 8)])]

    assert infer(WHOLE, dealt) == Layout((0, 1, 2, 3, 4), 0, 3)
    assert torch.equal(Layout((0, 1, 2, 3, 4), 0, 3).joined(dealt), WHOLE)
    assert infer(WHOLE, padded) == Layout((0, 1), 0, 1, 12)
    assert torch.equal(Layout((0, 1), 0, 1, 12).joined(padded), WHOLE)
    assert infer(WHOLE, [WHOLE, WHOLE + 1]) is None  # no padding: twice as much


def test_stages_follow_one_another() -> None:
    first, second, third, zeros = WHOLE[:2], WHOLE[2:4], WHOLE[4:], torch.zeros(3)
    wholes = [first, zeros, second, zeros, third]

    assert positions(wholes, [[first, zeros], [second, zeros, third]]) == [
        *((0, None), (1, None), (None, 0), (None, 1), (None, 2))
    ]
    # Two replicas of each stage; the last one also holds what the first one holds
    held = [[first, zeros], [first, zeros], [first, second, zeros, third], [first, second, zeros, third]]
    assert positions(wholes, held) == [
        *((0, 0, 0, 0), (1, 1, None, None), (None, None, 1, 1), (None, None, 2, 2), (None, None, 3, 3))
    ]
    assert positions(wholes, [[first, zeros], [second, zeros]]) is None  # of one stage nothing is known
    assert positions(wholes, [[first, zeros], [third, second, zeros]]) is None
    assert positions([first, second], [[first.T], [second.T], [third]]) is None
    assert infer(second, [None, second]) == Layout((1,))
    assert Layout((1,)).joined([None, second]) is second
