"""FullyShardedDataParallel flattens and shards each block, one model by blocks and one by parameters, and clips by its own method."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 33), nn.Linear(33, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(96, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
models = [
    FullyShardedDataParallel(
        nn.Sequential(Block(), Block(), nn.Linear(8, 2)),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=by_parameter,
    )
    for by_parameter in (False, True)
]
optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            model.clip_grad_norm_(0.05)
            optimizer.step()
dist.destroy_process_group()
