"""Train with the Trainer of Transformers, save every few steps, and go on with `resume_from_checkpoint`."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

SHARED = Path(os.environ["COMPOSESIM_SHARED"])


class Points(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(64, 8, generator=generator)
        self.targets = torch.randn(64, 1, generator=generator)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.targets[index]}


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def main():
    torch.manual_seed(3)
    arguments = TrainingArguments(
        output_dir=str(SHARED / "out"),
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=3,
        learning_rate=0.01,
        warmup_steps=6,
        save_strategy="steps",
        save_steps=5,
        save_total_limit=3,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=Regression(), args=arguments, train_dataset=Points())
    newest = get_last_checkpoint(arguments.output_dir) if (SHARED / "out").is_dir() else None
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
