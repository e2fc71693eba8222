"""How well do N ranks together learn to read handwritten digits with PaddlePaddle? A whole paddle.DataParallel script, to copy from.

    composesim up --recipe paddle --nodes 4 paddle_digits.py
    python -m paddle.distributed.launch --nproc_per_node 4 paddle_digits.py

Every rank runs this file; paddle.distributed.launch tells them apart. The batch of a step is shared out among the ranks, so its size
is about the same for any number of them. The model is saved after each epoch, and where a launcher starts the ranks anew, more of
them or fewer than before, they go on from there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.io import DataLoader, DistributedBatchSampler, TensorDataset
from paddle.nn.functional import cross_entropy


def main() -> None:
    arguments = parse_arguments()
    dist.init_parallel_env()  # NCCL where paddle.distributed.launch found GPUs, else gloo
    paddle.seed(arguments.seed)  # the same on all ranks: nothing random here may differ between them
    training, test = load_digits()
    share = max(1, arguments.batch_size // dist.get_world_size())
    sampler = DistributedBatchSampler(training, batch_size=share, shuffle=True, drop_last=True)
    network = build_network()
    optimizer = paddle.optimizer.Adam(learning_rate=arguments.lr, parameters=network.parameters())
    checkpoint = arguments.checkpoint / "digits.pdparams"
    first = begin(checkpoint, network, optimizer, arguments.resume)
    model = paddle.DataParallel(network)

    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)  # else every epoch has the same order
        train(model, optimizer, DataLoader(training, batch_sampler=sampler), epoch * len(sampler), epoch)
        if dist.get_rank() == 0:
            save_checkpoint(checkpoint, network, optimizer, epoch + 1)
    accuracy = evaluate(network, test)
    report(step=arguments.epochs * len(sampler), epoch=arguments.epochs, accuracy=round(accuracy, 4))


def parse_arguments() -> argparse.Namespace:
    restarted = int(os.environ.get("COMPOSESIM_GENERATION", "0")) > 0  # a round after the first one
    shared = Path(os.environ.get("COMPOSESIM_SHARED", "checkpoints"))
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="images a step, all ranks together")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=shared, metavar="DIR", help="a folder that all nodes share")
    parser.add_argument("--resume", action="store_true", default=restarted, help="go on from the checkpoint in DIR")
    return parser.parse_args()


def train(
    model: paddle.DataParallel, optimizer: paddle.optimizer.Optimizer, loader: DataLoader, step: int, epoch: int
) -> None:
    model.train()
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        loss.backward()  # which averages the gradients over all ranks
        optimizer.step()
        optimizer.clear_grad()
        step += 1
        if step % 5 == 0:
            mean_loss = loss.detach() / dist.get_world_size()
            sum_over_ranks(mean_loss)  # every rank takes part in a collective, and then one of them prints
            report(step=step, epoch=epoch, loss=round(float(mean_loss), 4))


@paddle.no_grad()
def evaluate(network: nn.Layer, test: TensorDataset) -> float:
    """The share of test images read right; each image is looked at by one rank."""
    network.eval()
    images, labels = (tensor[dist.get_rank() :: dist.get_world_size()] for tensor in test.tensors)
    right = (network(images).argmax(axis=1) == labels).astype("int64").sum()
    counts = paddle.stack([right, paddle.to_tensor(len(labels), dtype="int64")])
    sum_over_ranks(counts)
    return float(counts[0]) / float(counts[1])


def sum_over_ranks(tensor: paddle.Tensor) -> None:
    if dist.get_world_size() > 1:  # alone there is no group
        dist.all_reduce(tensor)


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, test), every fifth image for the test. Images are float32 (1, 8, 8) in 0..1, labels int64."""
    folders = (folder / "data" / "digits.csv.gz" for folder in Path(__file__).resolve().parents)
    with gzip.open(next(file for file in folders if file.is_file())) as file:
        rows = np.loadtxt(file, delimiter=",", dtype="int64")
    images, labels = (rows[:, :64] / 16).astype("float32").reshape(-1, 1, 8, 8), rows[:, 64]
    is_test = np.arange(len(rows)) % 5 == 0
    training, test = ((paddle.to_tensor(images[mask]), paddle.to_tensor(labels[mask])) for mask in (~is_test, is_test))
    return TensorDataset(list(training)), TensorDataset(list(test))


def build_network() -> nn.Layer:
    convolutions = [nn.Conv2D(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2D(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2D(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def begin(path: Path, network: nn.Layer, optimizer: paddle.optimizer.Optimizer, resume: bool) -> int:
    """The epochs done: none, or as many as when the checkpoint was saved."""
    epoch = 0
    if resume and path.exists():
        state = paddle.load(str(path))
        network.set_state_dict(state["model"])
        optimizer.set_state_dict(state["optimizer"])
        epoch = state["epoch"]
    elif dist.get_rank() == 0:  # an unwritable folder fails now, and a restart never meets an older run's checkpoint
        save_checkpoint(path, network, optimizer, epoch)
    first = paddle.to_tensor(epoch)
    if dist.get_world_size() > 1:
        dist.broadcast(first, src=0)
    if int(first) != epoch:  # without this check the ranks would wait for each other for ever
        raise SystemExit(f"{path} is of epoch {epoch} here, of epoch {int(first)} on rank 0: is DIR a shared folder?")
    return epoch


def save_checkpoint(path: Path, network: nn.Layer, optimizer: paddle.optimizer.Optimizer, epoch: int) -> None:
    """Replace the checkpoint in one move: a crash leaves the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    paddle.save({"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, str(partial))
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def report(**metrics: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
