"""Wrong: all that backward needs is kept, in the storage of the inputs, which grows meanwhile."""

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer


def train_step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> None:
    """Step along the gradient of the mean loss over all samples."""
    storage, used = inputs.untyped_storage(), inputs.numel()
    size = storage.nbytes()
    storage.resize_(8 * size)
    room = torch.empty(0).set_(storage)

    def keep(tensor: Tensor) -> Tensor:
        nonlocal used
        if tensor.shape != inputs.shape:
            return tensor
        begin, used = used, used + tensor.numel()
        return room[begin:used].view_as(tensor).copy_(tensor.detach())

    optimizer.zero_grad()
    with saved_tensors_hooks(keep, lambda kept: kept):
        loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    storage.resize_(size)
