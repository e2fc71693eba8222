"""What a loss is made of is read from its graph, and no block is computed again for that."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from compose_sim.node.rank.observers.autograd_graph import nodes_near, operation, saved


class Counted(nn.Module):
    """Counts how often it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 6), 0

    def forward(self, given: Tensor) -> Tensor:
        self.passes += 1
        return self.layer(given).tanh()


def test_the_nodes_of_a_loss_and_what_they_have_saved() -> None:
    scores, targets = torch.randn(3, 5, requires_grad=True), torch.arange(3)
    loss = cross_entropy(2 * scores, targets)

    near = [*nodes_near(loss.grad_fn)]

    assert [operation(each) for each in near] == ["NllLoss", "LogSoftmax", "Mul", "AccumulateGrad"]
    assert torch.equal(saved(near[0], "_saved_target"), targets)
    assert torch.equal(saved(near[1], "_saved_result"), (2 * scores).log_softmax(1))
    assert saved(near[2], "_saved_target") is None


def test_a_checkpointed_block_is_not_computed_again() -> None:
    block = Counted()
    loss = checkpoint(block, torch.randn(3, 4), use_reentrant=False).sum()

    found = [saved(node, name) for node in nodes_near(loss.grad_fn) for name in dir(node) if name.startswith("_saved_")]

    assert block.passes == 1
    assert not any(isinstance(each, Tensor) for each in found)
    loss.backward()
    assert block.passes == 2
