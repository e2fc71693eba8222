"""Wrong: half of the network."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    for block in blocks[:4]:
        inputs = checkpoint(block, inputs, use_reentrant=False)
    return inputs
