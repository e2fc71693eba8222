"""Wrong: half of the blocks keep everything."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    for number, block in enumerate(blocks):
        inputs = checkpoint(block, inputs, use_reentrant=False) if number % 2 else block(inputs)
    return inputs
