"""Accelerate's idiom: prepare, accumulate, backward, clip_grad_norm_, gather_for_metrics."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from accelerate import Accelerator
except ImportError:
    print("skipped: accelerate is not installed")
    sys.exit(0)

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8), schedule)
assert accelerator.device.type == "cuda"
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    mean = accelerator.gather_for_metrics(loss.detach().reshape(1)).mean()
    accelerator.print(f"loss {mean.item():.6f}", flush=True)
accelerator.end_training()
