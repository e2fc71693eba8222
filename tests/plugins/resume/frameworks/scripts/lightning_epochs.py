"""Train with Lightning, save at the end of each epoch, and go on with `ckpt_path="last"`; an average is kept by a callback."""

import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
WORLD_SIZE, DEVICES = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, number):
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)]


class Average(Callback):
    """An average of the weights, which belongs to the state of the training."""

    def __init__(self):
        self.average = {}

    def on_train_batch_end(self, trainer, module, *_):
        for name, value in module.named_parameters():
            mean = self.average.setdefault(name, value.detach().clone())
            mean.lerp_(value.detach(), 0.1)

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state_dict):
        self.average = state_dict["average"]


def main():
    lightning.seed_everything(3, verbose=False)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    saves = ModelCheckpoint(dirpath=SHARED, filename="{epoch}", save_last=True, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=DEVICES,
        num_nodes=WORLD_SIZE // DEVICES,
        strategy="ddp",
        max_epochs=4,
        callbacks=[saves, Average()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = SHARED / "last.ckpt"
    module = Regression()
    trainer.fit(module, DataLoader(data, batch_size=4, shuffle=True), ckpt_path="last" if last.exists() else None)


if __name__ == "__main__":
    main()
