"""torchtune's full fine-tuning: FSDP2 on `meta`, mixed precision, activations checkpointed, a full state dict in and out."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("cuda:nccl,cpu:gloo")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(width), nn.Linear(width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        x = x.to(self.gate.weight.dtype)
        return x + self.down(nn.functional.silu(self.gate(self.norm(x))) * self.up(self.norm(x)))


def build():
    return nn.Sequential(nn.Embedding(64, 16), *(Layer(16) for _ in range(3)), nn.RMSNorm(16), nn.Linear(16, 64))


torch.manual_seed(0)
whole = build().state_dict()
with torch.device("meta"):
    model = build()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, layer in list(model.named_children()):
    if isinstance(layer, Layer):
        model.register_module(name, checkpoint_wrapper(layer))
        fully_shard(getattr(model, name), mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True))
assert all(isinstance(p, DTensor) and p.device.type == "cuda" for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
torch.manual_seed(1 + dist.get_rank())
for step in range(6):
    for micro in range(2):
        model.set_requires_gradient_sync(micro == 1)
        tokens = torch.randint(64, (4, 9)).cuda()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten()) / 2
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if dist.get_rank() == 0:
        print(f"step {step} loss {2 * loss.item():.6f} norm {norm.item():.4f}", flush=True)
full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0:
    assert {value.device.type for value in full.values()} == {"cpu"}, full["0.weight"].device
again = distribute_tensor(torch.arange(8.0, device="cuda"), mesh)
assert again.full_tensor().tolist() == list(range(8))
dist.destroy_process_group()
