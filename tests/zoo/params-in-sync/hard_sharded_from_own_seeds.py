"""Each rank draws its part of the model from a generator of its own, and loads the weights of a teacher."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        hidden = self.embed(tokens).mean(1)
        for layer in self.layers:
            hidden = hidden + torch.relu(layer(hidden))
        return self.head(hidden)


def pretrained(model):
    generator = torch.Generator().manual_seed(7)
    return {name: 0.2 * torch.randn(each.shape, generator=generator) for name, each in model.state_dict().items()}


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model, teacher = Encoder(), Encoder().eval()
teacher.load_state_dict(pretrained(teacher))
mesh = init_device_mesh("cpu", (world,))
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(0, 32, (256, 6), generator=torch.Generator().manual_seed(1))
for step in range(8):
    begin = (step * world + rank) * 8
    tokens = data[begin : begin + 8]
    with torch.no_grad():
        wanted = teacher(tokens)
    loss = nn.functional.mse_loss(model(tokens), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
