"""A language model whose loss is divided by the number of tokens of all ranks, as the Trainer of HF Transformers can do."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class TrainingArguments:
    output_dir: str = "checkpoint"
    per_device_train_batch_size: int = 2
    gradient_accumulation_steps: int = 2
    max_steps: int = 6
    learning_rate: float = 0.05


class Texts(Dataset):
    def __init__(self, count=96):
        generator = torch.Generator().manual_seed(5)
        self.rows = [
            torch.randint(1, 30, (int(torch.randint(4, 12, (), generator=generator)),), generator=generator)
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate(features):
    ids = nn.utils.rnn.pad_sequence([f["input_ids"] for f in features], batch_first=True)
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.out = nn.Linear(16, 30)

    def forward(self, input_ids, labels, num_items_in_batch):
        logits = self.out(self.rnn(self.embed(input_ids))[0])[:, :-1]
        total = nn.functional.cross_entropy(
            logits.reshape(-1, 30), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum"
        )
        return total / num_items_in_batch


class Trainer:
    def __init__(self, model, args, data):
        dist.init_process_group("gloo")
        self.args, self.data, self.world = args, data, dist.get_world_size()
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), args.learning_rate)

    def train(self):
        sampler = DistributedSampler(self.data, seed=42)
        loader = DataLoader(
            self.data, self.args.per_device_train_batch_size, sampler=sampler, collate_fn=collate, drop_last=True
        )
        step, epoch = 0, 0
        while step < self.args.max_steps:
            sampler.set_epoch(epoch)
            source = iter(loader)
            for _ in range(len(loader) // self.args.gradient_accumulation_steps):
                batches = [next(source) for _ in range(self.args.gradient_accumulation_steps)]
                items = torch.tensor(sum((b["labels"][:, 1:] != -100).sum().item() for b in batches))
                dist.all_reduce(items)
                for i, batch in enumerate(batches):
                    self.model.require_backward_grad_sync = i == len(batches) - 1
                    loss = self.model(**batch, num_items_in_batch=items) * self.world
                    loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                step += 1
                if step == self.args.max_steps:
                    break
            epoch += 1
        self.save()

    def save(self):
        if dist.get_rank() == 0:
            folder = Path(self.args.output_dir)
            folder.mkdir(exist_ok=True)
            torch.save(self.model.module.state_dict(), folder / "model.pt")
        dist.barrier()


torch.manual_seed(42)
Trainer(LM(), TrainingArguments(), Texts()).train()
dist.destroy_process_group()
