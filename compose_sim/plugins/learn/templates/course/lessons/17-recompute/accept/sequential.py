"""Right: the function that torch has for a sequence."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    return checkpoint_sequential(nn.Sequential(*blocks), len(blocks), inputs, use_reentrant=False)
