"""Megatron's idiom: autograd functions around collectives, tensor parallel groups made with new_group, RNG state saved."""

import os

import torch
import torch.distributed as dist
from torch import nn

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
tensor_group = dist.new_group(list(range(size)))
data_groups = [dist.new_group([each]) for each in range(size)]


class CopyToRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=tensor_group)
        return gradient


class ReduceFromRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x, group=tensor_group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class ParallelMLP(nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        up, down = torch.randn(hidden, width) * 0.1, torch.randn(width, hidden) * 0.1
        place = torch.cuda.current_device()
        self.up = nn.Parameter(torch.empty(hidden // size, width, device=place))
        self.down = nn.Parameter(torch.empty(width, hidden // size, device=place))
        with torch.no_grad():
            self.up.copy_(up.chunk(size, 0)[rank])
            self.down.copy_(down.chunk(size, 1)[rank])
        self.up.tensor_model_parallel = True

    def forward(self, x):
        hidden = nn.functional.gelu(nn.functional.linear(CopyToRegion.apply(x), self.up))
        return ReduceFromRegion.apply(nn.functional.linear(hidden, self.down))


torch.manual_seed(1234)
model = ParallelMLP()
state = torch.cuda.get_rng_state()
master = [p.detach().clone().float() for p in model.parameters()]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(4):
    x = torch.cuda.FloatTensor(8, 16)
    x.copy_(torch.randn(8, 16))
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(model.up.grad, group=data_groups[rank])
    flat = torch._utils._flatten_dense_tensors([p.grad for p in model.parameters()])
    optimizer.step()
    if rank == 0:
        print(f"iteration {step} loss {loss.item():.6f} gradients on {flat.device.type}", flush=True)
torch.cuda.set_rng_state(state)
dist.destroy_process_group()
