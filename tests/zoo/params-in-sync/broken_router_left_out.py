"""Expert parallelism by all_to_all in which the replicated router and head are left out of the reduction."""

# expects: params-in-sync
# also: gradient-mean

import torch
import torch.distributed as dist
import torch.nn as nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
stem, router, head = nn.Linear(6, 8), nn.Linear(8, world), nn.Linear(8, 2)
torch.manual_seed(100 + rank)
expert = nn.Linear(8, 8)
parameters = [*stem.parameters(), *router.parameters(), *expert.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, 0.05)
generator = torch.Generator().manual_seed(rank)
for step in range(8):
    x = torch.randn(2 * world, 6, generator=generator)
    y = (x.sum(1) > 0).long()
    h = stem(x).relu()
    gate = router(h).softmax(-1)
    slot = torch.arange(2 * world) // 2
    sent = AllToAll.apply(h)
    back = AllToAll.apply(expert(sent).relu())
    out = h + back * gate.gather(1, slot.unsqueeze(1))
    loss = nn.functional.cross_entropy(head(out), y)
    optimizer.zero_grad()
    loss.backward()
    for p in stem.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    for p in expert.parameters():
        p.grad /= world
    optimizer.step()
dist.destroy_process_group()
