"""Experts of a mixture differ between ranks, and their gradients come from all ranks' tokens; the router's are averaged."""

import torch
import torch.distributed as dist
from torch import nn


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens.contiguous())
        return received

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        returned = torch.empty_like(gradient)
        dist.all_to_all_single(returned, gradient.contiguous())
        return returned


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
router, head = nn.Linear(8, 8), nn.Linear(8, 1)
torch.manual_seed(100 + rank)
expert = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
shared = [*router.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW([*shared, *expert.parameters()], lr=1e-2)
for _ in range(8):
    x = torch.randn(4 * world_size, 8)
    hidden = Exchange.apply(expert(Exchange.apply(router(x))))
    loss = (head(hidden) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in shared:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    for parameter in expert.parameters():
        parameter.grad /= world_size
    optimizer.step()
dist.destroy_process_group()
