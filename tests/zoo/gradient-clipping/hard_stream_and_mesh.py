"""Blocks sharded with fully_shard over a mesh, an endless token stream split by data rank, global norm clipping."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset


@dataclass
class JobConfig:
    steps: int = 6
    local_batch: int = 2
    sequence: int = 8
    vocabulary: int = 32
    width: int = 16
    max_norm: float = 1.0


class TokenStream(IterableDataset):
    def __init__(self, cfg, rank, world):
        self.cfg, self.rank, self.world = cfg, rank, world

    def __iter__(self):
        index = self.rank
        while True:
            generator = torch.Generator().manual_seed(index)
            row = torch.randint(0, self.cfg.vocabulary, (self.cfg.sequence + 1,), generator=generator)
            yield row[:-1], row[1:]
            index += self.world


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocabulary, cfg.width)
        self.layers = nn.ModuleList(Block(cfg.width) for _ in range(2))
        self.output = nn.Linear(cfg.width, cfg.vocabulary, bias=False)

    def forward(self, x):
        x = self.tok(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def main(cfg):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    torch.manual_seed(0)
    model = Transformer(cfg)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = iter(DataLoader(TokenStream(cfg, mesh.get_local_rank(), mesh.size()), cfg.local_batch))
    for step in range(cfg.steps):
        x, y = next(loader)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean / mesh.size():.4f}")
    dist.destroy_process_group()


main(JobConfig())
