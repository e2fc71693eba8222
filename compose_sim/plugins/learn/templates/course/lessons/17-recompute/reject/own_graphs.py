"""Wrong: an autograd function keeps the graph of each block for itself."""

import torch
from torch import Tensor, nn


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block: nn.Module, inputs: Tensor, *parameters: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.inputs = inputs.detach().requires_grad_()
            ctx.outputs = block(ctx.inputs)
        ctx.parameters = parameters
        ctx.save_for_backward(inputs)
        return ctx.outputs.detach()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch.autograd.grad(ctx.outputs, [ctx.inputs, *ctx.parameters], gradient)


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Return the output of all blocks, one after the other."""
    for block in blocks:
        inputs = Kept.apply(block, inputs, *block.parameters())
    return inputs
