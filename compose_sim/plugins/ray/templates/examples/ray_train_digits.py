"""How well do Ray Train's workers learn to read handwritten digits, when nodes come and go?

    composesim up --recipe ray --nodes 4 ray_train_digits.py
    python ray_train_digits.py

Ray Train starts the workers on the nodes of the cluster and joins them to a process group of torch.distributed, so that each
trains with DistributedDataParallel (gloo on CPUs, NCCL on GPUs). When a node is lost, Ray Train starts the workers anew, fewer of
them where there is no room for all, and they go on from the last checkpoint; when nodes are added, it takes them in.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    arguments = parse_arguments()
    # The cluster of RAY_ADDRESS, if that is set, else one on this machine alone. With a LoggingConfig, what workers print comes
    # as they print it, so that their metrics stay JSON lines.
    ray.init(logging_config=ray.LoggingConfig(log_level="WARNING"))
    trainer = TorchTrainer(
        train_digits,
        train_loop_config={**vars(arguments), "digits": read_digits()},
        scaling_config=ScalingConfig(
            num_workers=arguments.workers,  # least and most: as many as the cluster has room for, at any time
            elastic_resize_monitor_interval_s=5,  # how often it looks whether there is room for more
            use_gpu=ray.cluster_resources().get("GPU", 0) >= arguments.workers[0],
        ),
        run_config=RunConfig(
            name="digits",
            storage_path=arguments.storage,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=3),  # how often the workers may be started anew
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    result = trainer.fit()
    print(f"the last checkpoint is {result.checkpoint.path}" if result.checkpoint else "there is no checkpoint")


def parse_arguments() -> argparse.Namespace:
    shared = os.environ.get("COMPOSESIM_SHARED", Path("checkpoints").absolute())
    parser = argparse.ArgumentParser(description="Read handwritten digits, by workers of Ray Train.")
    parser.add_argument("--workers", type=least_and_most, default=(1, 8), metavar="LEAST:MOST")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="images a step, all workers together")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate")
    parser.add_argument("--storage", default=str(shared), metavar="DIR", help="a folder that all nodes share")
    return parser.parse_args()


def least_and_most(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def read_digits() -> torch.Tensor:
    """uint8 (1797, 65), 64 pixels of 0..16 and the digit. The driver reads them, so that no node needs the file."""
    folder = next(each for each in Path(__file__).resolve().parents if (each / "data" / "digits.csv.gz").exists())
    lines = gzip.decompress((folder / "data" / "digits.csv.gz").read_bytes()).decode().split()
    return torch.tensor([[int(value) for value in line.split(",")] for line in lines], dtype=torch.uint8)


def train_digits(config: dict[str, Any]) -> None:
    """What each worker does, from the beginning or from the last checkpoint."""
    context = ray.train.get_context()
    torch.manual_seed(0)
    training, test = split(config["digits"])
    share = max(1, config["batch_size"] // context.get_world_size())
    # Each worker gets a share of the images of its own, on its own device, and gradients are averaged over all of them.
    loader = ray.train.torch.prepare_data_loader(DataLoader(training, share, shuffle=True, drop_last=True))
    model = ray.train.torch.prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for epoch in range(load_checkpoint(model, optimizer), config["epochs"]):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)  # else every epoch has the same order
        model.train()
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"step": epoch + 1, "loss": round(loss.item(), 4), "accuracy": accuracy(model, test)}
        if context.get_world_rank() == 0:
            # A JSON line with a "step": composesim shows it, and puts it into its report. Ray Train's print() would log it, too.
            sys.stdout.write(json.dumps({**metrics, "workers": context.get_world_size()}) + "\n")
        save_checkpoint(model, optimizer, metrics)


def split(digits: torch.Tensor) -> tuple[TensorDataset, TensorDataset]:
    """(training, test), every fifth image for the test. Images are float32 (1, 8, 8) in 0..1, labels int64."""
    images, labels = digits[:, :64].reshape(-1, 1, 8, 8) / 16, digits[:, 64].long()
    is_test = torch.arange(len(digits)) % 5 == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def build_model() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """The share of test images read right; every worker has the same model, so each may ask all of them."""
    model.eval()
    device = ray.train.torch.get_device()
    images, labels = (each.to(device) for each in test.tensors)
    return round((model(images).argmax(dim=1) == labels).float().mean().item(), 4)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself: a single worker's is not wrapped for DDP, and goes on from what several have saved."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def load_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The epochs done: none, or as many as when the last checkpoint was saved."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, "state.pt"), map_location=ray.train.torch.get_device(), weights_only=True)
    unwrapped(model).load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epochs"]


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, metrics: dict[str, Any]) -> None:
    """Every worker reports; the checkpoint of the first one is copied to where all nodes find it."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            weights = unwrapped(model).state_dict()
            state = {"model": weights, "optimizer": optimizer.state_dict(), "epochs": metrics["step"]}
            torch.save(state, Path(folder, "state.pt"))
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    main()
