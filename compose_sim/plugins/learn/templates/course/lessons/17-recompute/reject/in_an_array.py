"""Wrong: nothing is computed again; what backward needs is kept in an array that was there before."""

import numpy
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

room = numpy.zeros(1 << 23, numpy.uint8)


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Apply the blocks one after the other."""
    used = 0

    def keep(tensor: Tensor) -> Tensor | numpy.ndarray:
        nonlocal used
        if isinstance(tensor, nn.Parameter) or tensor.numel() < inputs.numel():
            return tensor
        numbers = numpy.ascontiguousarray(tensor.detach().numpy())
        begin, used = used, used + numbers.nbytes
        kept = room[begin:used].view(numbers.dtype).reshape(numbers.shape)
        kept[...] = numbers
        return kept

    with saved_tensors_hooks(keep, lambda kept: kept if isinstance(kept, Tensor) else torch.from_numpy(kept.copy())):
        for block in blocks:
            inputs = block(inputs)
    return inputs
