"""Wrong: nothing is computed again; a thread that was started early keeps all activations where nothing counts them."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

elsewhere = ThreadPoolExecutor(1)
elsewhere.submit(int).result()


class Whole(torch.autograd.Function):
    """All blocks at once, in the thread."""

    @staticmethod
    def forward(ctx, blocks: nn.ModuleList, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Compute the blocks and keep their graph."""

        def compute() -> Tensor:
            with torch.enable_grad():
                return nn.Sequential(*blocks)(inputs)

        ctx.outputs, ctx.parameters = elsewhere.submit(compute).result(), list(blocks.parameters())
        return ctx.outputs.detach().clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through the graph."""
        return None, None, *elsewhere.submit(torch.autograd.grad, ctx.outputs, ctx.parameters, gradient).result()


def forward(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    """Apply the blocks one after the other."""
    return Whole.apply(blocks, inputs, *blocks.parameters())
