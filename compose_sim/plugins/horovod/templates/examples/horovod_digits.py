"""How well do N ranks together learn to read handwritten digits? With Horovod: a whole script, to copy from.

    composesim up --recipe horovod --nodes 4 horovod_digits.py
    horovodrun -np 4 python horovod_digits.py

Every rank runs this file; hvd.rank() is unique in the whole job and decides who speaks, hvd.local_rank() is unique on its host and
picks the GPU. Under --elastic ranks come and go: then training goes on from the last commit, with the ranks that are left.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import warnings
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does without, but says so at import

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ELASTIC = os.environ.get("HOROVOD_ELASTIC") == "1"  # horovodrun says so


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(arguments.seed)
    training, test = load_digits()
    model = build_model().to(device)
    # Each step takes the images of all ranks, so the steps may be longer by their number.
    optimizer = SGD(model.parameters(), lr=arguments.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    if (
        not ELASTIC
    ):  # else the state is brought to all ranks, new ones too, whenever the ranks have changed; and by nothing else
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0, step=0)
    state.register_reset_callbacks([lambda: scale_rate(optimizer, arguments.lr * hvd.size())])
    run = hvd.elastic.run(train) if ELASTIC else train
    run(state, arguments, training, device)
    report(step=state.step, epoch=arguments.epochs, accuracy=round(evaluate(model, test, device), 4), ranks=hvd.size())
    hvd.shutdown()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16, help="images a step of each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one rank alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--commit-every", type=int, default=5, metavar="STEPS", help="what a lost rank may cost, if elastic"
    )
    return parser.parse_args()


def train(
    state: hvd.elastic.TorchState, arguments: argparse.Namespace, training: TensorDataset, device: torch.device
) -> None:
    """Train from where `state` stands to the end; it is called again with other ranks than before, if elastic."""
    shares = DistributedSampler(training, num_replicas=hvd.size(), rank=hvd.rank(), seed=arguments.seed, drop_last=True)
    loader = DataLoader(training, arguments.batch_size, sampler=shares)
    while state.epoch < arguments.epochs:
        shares.set_epoch(state.epoch)
        state.model.train()
        for batch, (images, labels) in enumerate(loader):
            if batch < state.batch:  # done before the ranks changed
                continue
            loss = cross_entropy(state.model(images.to(device)), labels.to(device))
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.batch, state.step = batch + 1, state.step + 1
            if state.step % 5 == 0:
                # Every rank takes part, and one of them prints.
                mean_loss = hvd.allreduce(loss.detach(), name="mean_loss")
                report(step=state.step, epoch=state.epoch, loss=round(mean_loss.item(), 4), ranks=hvd.size())
            if ELASTIC and state.step % arguments.commit_every == 0:
                state.commit()
        state.epoch, state.batch = state.epoch + 1, 0


def scale_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """More ranks, or fewer, than before."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, test), every fifth image for the test. Images are float32 (1, 8, 8) in 0..1, labels int64."""
    data = Path("data") / "digits.csv.gz"  # beside this file, or above it in composesim's own folder
    file = next(folder / data for folder in Path(__file__).resolve().parents if (folder / data).exists())
    values = bytearray(map(int, gzip.decompress(file.read_bytes()).replace(b"\n", b",").rstrip(b",").split(b",")))
    rows = torch.frombuffer(values, dtype=torch.uint8).view(-1, 65)
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    is_test = torch.arange(len(rows)) % 5 == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def build_model() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


@torch.no_grad()
def evaluate(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """The share of test images read right."""
    model.eval()
    images, labels = test[hvd.rank() :: hvd.size()]  # each image on one rank
    right = model(images.to(device)).argmax(dim=1) == labels.to(device)
    counts = hvd.allreduce(torch.tensor([int(right.sum()), len(labels)], dtype=torch.float64), op=hvd.Sum, name="right")
    return (counts[0] / counts[1]).item()


def report(**metrics: float) -> None:
    if hvd.rank() == 0:
        print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
