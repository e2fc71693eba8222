"""Wrong: half of what backward needs is kept all the same, in arrays of NumPy."""

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> None:
    """Step along the gradient of the mean loss over all samples."""
    optimizer.zero_grad()
    parts = list(zip(inputs.chunk(2), targets.chunk(2), strict=True))
    with saved_tensors_hooks(lambda each: each.detach().numpy().copy(), torch.from_numpy):
        losses = [nn.functional.mse_loss(model(some), wanted) / 2 for some, wanted in parts]
    for loss in losses:
        loss.backward()
    optimizer.step()
