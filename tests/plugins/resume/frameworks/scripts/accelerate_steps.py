"""Train with Accelerate, save in the middle of an epoch, and go on with the epoch and the batch that follow."""

import os
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EVERY = 3, 5
SHARED = Path(os.environ["COMPOSESIM_SHARED"])


class Progress:
    """The number of steps made."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def main():
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(3)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.99**step)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    newest = max(SHARED.glob("step_*"), key=lambda path: int(path.name[5:]), default=None)
    if newest is not None:
        accelerator.load_state(str(newest))
    first = progress.steps % len(loader)
    for epoch in range(progress.steps // len(loader), EPOCHS):
        loader.set_epoch(epoch)
        batches = accelerator.skip_first_batches(loader, first) if first else loader
        for inputs, targets in batches:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.steps += 1
            if progress.steps % EVERY == 0:
                save(accelerator, progress.steps)
        first = 0
    accelerator.end_training()


def save(accelerator, steps):
    """Write everything under another name, and rename the folder when all ranks have written."""
    unfinished = SHARED / "unfinished"
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(SHARED / f"step_{steps}", ignore_errors=True)
        unfinished.rename(SHARED / f"step_{steps}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
