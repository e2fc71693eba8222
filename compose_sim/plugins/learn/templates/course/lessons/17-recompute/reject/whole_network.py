"""Wrong: backward computes and keeps everything at once."""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    return checkpoint(nn.Sequential(*blocks), inputs, use_reentrant=False)
