"""Hugging Face's Trainer over Accelerate with FSDP: shared state, accumulation, clipping, rank 0's full checkpoint."""

import contextlib
import functools
import os
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    max_grad_norm: float = 1.0
    learning_rate: float = 5e-3
    output: str = "trainer_checkpoint.pt"


class PartialState:
    _shared_state: ClassVar[dict] = {}

    def __init__(self):
        self.__dict__ = self._shared_state
        if not self._shared_state:
            self.local_process_index = int(os.environ.get("LOCAL_RANK", -1))
            self.device = torch.device("cuda", self.local_process_index)
            dist.init_process_group(backend="nccl")
            torch.cuda.set_device(self.device)
            self.num_processes, self.process_index = dist.get_world_size(), dist.get_rank()

    def gather(self, tensor):
        tensor = tensor.clone()[None] if tensor.ndim == 0 else tensor.contiguous()
        gathered = torch.empty(self.num_processes * tensor.numel(), dtype=tensor.dtype, device=self.device)
        dist.all_gather_into_tensor(gathered, tensor)
        return gathered.view(-1, *tensor.size()[1:])


class Block(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(dim), nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(40, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 40)

    def forward(self, input_ids, labels):
        logits = self.head(self.blocks(self.embed(input_ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


args, state = TrainingArguments(), PartialState()
torch.manual_seed(42)
model = FSDP(
    Model(),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    device_id=state.device,
    sync_module_states=True,
    use_orig_params=True,
    limit_all_gathers=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))
ids = torch.randint(40, (32, 13))
sampler = DistributedSampler(ids, state.num_processes, state.process_index, seed=42)
loader = DataLoader(TensorDataset(ids), args.per_device_train_batch_size, sampler=sampler, pin_memory=True)
tr_loss = torch.tensor(0.0).to(state.device)
for step, (batch,) in enumerate(loader):
    batch = batch.to(state.device, non_blocking=True)
    sync = (step + 1) % args.gradient_accumulation_steps == 0
    with contextlib.nullcontext() if sync else model.no_sync():
        loss = model(batch[:, :-1], batch[:, 1:]) / args.gradient_accumulation_steps
        loss.backward()
    tr_loss += loss.detach()
    if sync:
        model.clip_grad_norm_(args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        tr_loss_scalar = state.gather(tr_loss).mean().item()
        tr_loss -= tr_loss
        if state.process_index == 0:
            print(f"step {step} loss {tr_loss_scalar:.6f} lr {scheduler.get_last_lr()[0]}", flush=True)
rng = {"cpu": torch.random.get_rng_state(), "cuda": torch.cuda.random.get_rng_state_all()}
noise = torch.rand(3, device=state.device)
weights = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(
    model, StateDictType.FULL_STATE_DICT, weights, FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
):
    full, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
assert bool(full) == bool(moments) == (state.process_index == 0), "only rank 0 holds what is saved"
if state.process_index == 0:
    if state.num_processes > 1:  # FSDP shards nothing for one rank, and then offloads nothing
        assert {value.device.type for value in full.values()} == {"cpu"}
    torch.save({"model": full, "optimizer": moments, "rng": rng}, args.output)
    saved = torch.load(args.output, map_location="cpu", weights_only=True)
    restored = Model().to(state.device)
    restored.load_state_dict(saved["model"])
    os.remove(args.output)
    torch.random.set_rng_state(saved["rng"]["cpu"])
    torch.cuda.random.set_rng_state_all(saved["rng"]["cuda"])
    assert torch.equal(torch.rand(3, device=state.device), noise), "the state of the generator was not restored"
    batch = ids[:4].to(state.device)
    print(f"restored loss {restored(batch[:, :-1], batch[:, 1:]).item():.6f}", flush=True)
dist.barrier()
torch.cuda.empty_cache()
dist.destroy_process_group()
