"""Wrong: other gradients."""

from torch import Tensor, nn
from torch.optim import Optimizer


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> None:
    """Step along the gradient of the mean loss over all samples."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[:64]), targets[:64])
    loss.backward()
    optimizer.step()
