"""FSDP1 with an automatic wrap policy, bfloat16, no_sync, clipping, and a full state dict."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
torch.cuda.manual_seed(0)
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.Linear(8, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 1))
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer})
bf16 = torch.bfloat16
model = FSDP(
    model,
    auto_wrap_policy=policy,
    mixed_precision=MixedPrecision(param_dtype=bf16, reduce_dtype=bf16, buffer_dtype=bf16),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.cuda.current_device(),
    limit_all_gathers=True,
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
torch.manual_seed(dist.get_rank())
for step in range(3):
    with model.no_sync():
        model(torch.randn(4, 6, 8).to(local_rank)).float().pow(2).mean().backward()
    loss = model(torch.randn(4, 6, 8).to(local_rank)).float().pow(2).mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
    state = model.state_dict()
if dist.get_rank() == 0:
    print("saved", len(state), {value.device.type for value in state.values()})
dist.barrier()
dist.destroy_process_group()
