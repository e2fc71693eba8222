"""Compute a deep network, and keep little for backward. harness.py calls this, and measures what autograd keeps."""

from torch import Tensor, nn


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    for block in blocks:
        inputs = block(inputs)
    return inputs
