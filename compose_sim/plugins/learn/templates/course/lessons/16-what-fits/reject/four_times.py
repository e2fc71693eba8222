"""Wrong: the gradient is four times as large, which Adam hides."""

from torch import Tensor, nn
from torch.optim import Optimizer


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> None:
    """Step along the gradient of the mean loss over all samples."""
    optimizer.zero_grad()
    for some, wanted in zip(inputs.chunk(4), targets.chunk(4), strict=True):
        nn.functional.mse_loss(model(some), wanted).backward()
    optimizer.step()
