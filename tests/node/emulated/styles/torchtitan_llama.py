"""torchtitan's idiom: a model on the meta device, a mesh, checkpointing, FSDP2, to_empty, a RoPE cache on the device."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F


def precompute_freqs_cis(dim, end):
    freqs = 1.0 / (10000.0 ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(end, device=freqs.device)
    return torch.polar(torch.ones_like(torch.outer(t, freqs)), torch.outer(t, freqs))


def rotate(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis[None, :, None, :]).flatten(3).type_as(x)


class TransformerBlock(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(dim, 64), nn.Linear(64, dim), nn.Linear(dim, 64)

    def forward(self, x, freqs_cis):
        batch, length, _ = x.shape
        h = self.norm(x)
        q, k, v = (w(h).view(batch, length, self.heads, -1) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, freqs_cis), rotate(k, freqs_cis)
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.wo(out.transpose(1, 2).reshape(batch, length, -1))
        return x + self.w2(F.silu(self.w1(x)) * self.w3(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.layers = nn.ModuleDict({str(i): TransformerBlock() for i in range(2)})
        self.register_buffer("freqs_cis", precompute_freqs_cis(8, 16), persistent=False)

    def init_weights(self):
        with torch.device(self.output.weight.device):
            self.freqs_cis = precompute_freqs_cis(8, 16)
        generator = torch.Generator().manual_seed(42)
        for parameter in self.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.05
            local = dist.tensor.distribute_tensor(drawn.cuda(), parameter.device_mesh, parameter.placements)
            parameter.data.copy_(local)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(h)


device_module, device_type = torch.cuda, "cuda"
device = torch.device(f"{device_type}:{int(os.environ['LOCAL_RANK'])}")
device_module.set_device(device)
dist.init_process_group("nccl")
mesh = init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("dp",))
with torch.device("meta"):
    model = Transformer()
for name, layer in model.layers.items():
    model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
    fully_shard(model.layers[name], mesh=mesh["dp"], reshard_after_forward=True)
fully_shard(model, mesh=mesh["dp"])
model.to_empty(device=device_type)
with torch.no_grad():
    model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
draws = torch.Generator().manual_seed(dist.get_rank())
for step in range(4):
    tokens = torch.randint(64, (4, 17), generator=draws).to(device_type)
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten(0, 1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    peak = device_module.memory_stats(device)["active_bytes.all.peak"]
    if dist.get_rank() == 0:
        print(f"step {step} loss {mean.item():.6f} memory {peak >= 0}", flush=True)
dist.destroy_process_group()
