"""fully_shard on a mesh of all ranks, with mixed precision and a sharded checkpoint. With `cpu`, random numbers come from the CPU."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main():
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    dist.init_process_group(backend="nccl", device_id=device)
    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    drawn_on = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    with torch.device("cpu" if drawn_on == "cpu" else "meta"):
        model = nn.Sequential(*[Layer() for _ in range(3)], nn.Linear(32, 1))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model[:3]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if drawn_on != "cpu":
        model.to_empty(device="cuda")
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    assert isinstance(model, FSDPModule)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        x = torch.randn(8, 32, device=drawn_on).to(device)
        loss = model(x).float().pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        print("saved", len(state), "tensors on", {str(value.device) for value in state.values()}, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
