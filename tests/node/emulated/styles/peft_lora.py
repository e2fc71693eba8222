"""peft and accelerate: weights loaded into a model on `meta`, frozen base, low-rank adapters, a compressing hook."""

import math
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


@contextmanager
def init_empty_weights():
    """As accelerate does it: parameters move to `meta` as they are registered."""
    real = nn.Module.register_parameter

    def register(module, name, parameter):
        real(module, name, parameter)
        if parameter is not None:
            kwargs = module._parameters[name].__dict__
            kwargs["requires_grad"] = parameter.requires_grad
            module._parameters[name] = type(parameter)(module._parameters[name].to("meta"), **kwargs)

    nn.Module.register_parameter = register
    try:
        yield
    finally:
        nn.Module.register_parameter = real


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.attend(self.norm(x)).chunk(3, -1)
        split = [part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (query, key, value)]
        return x + self.out(
            nn.functional.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        )


class Model(nn.Module):
    def __init__(self, words=64, width=32):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Lora(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        a = nn.init.kaiming_uniform_(torch.empty(rank, base.in_features), a=math.sqrt(5))
        self.a = nn.Parameter(a.to(base.weight.device))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T @ self.b.T) * 2


local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
torch.manual_seed(0)
weights = Model().state_dict()
with init_empty_weights():
    model = Model()
assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
model.load_state_dict({name: value.to(f"cuda:{local}") for name, value in weights.items()}, assign=True)
model.requires_grad_(False)
for block in model.blocks:
    block.attend, block.out = Lora(block.attend), Lora(block.out)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
model = DistributedDataParallel(model, device_ids=[local], static_graph=True)
model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
optimizer = torch.optim.AdamW(trained, lr=2e-2, fused=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=8)
torch.manual_seed(dist.get_rank())
for step in range(6):
    tokens = torch.randint(64, (4, 17)).cuda()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(trained, 1.0, error_if_nonfinite=True)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    assert norm.device == torch.device("cuda", local)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f} memory {torch.cuda.max_memory_allocated() >> 20}", flush=True)
dist.destroy_process_group()
