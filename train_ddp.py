"""A complete DistributedDataParallel script to copy: N ranks learn to read handwritten digits.

    composesim up --nodes 4 train_ddp.py
    torchrun --nproc-per-node 4 train_ddp.py

Every rank runs this file; the environment that the launcher sets tells them apart. RANK is unique in the whole job and
decides which rank prints and saves; LOCAL_RANK is unique on its node and picks the GPU. Each step uses the same images at any
world size, so 1, 2 and 4 ranks learn the same weights, up to rounding (3 nearly: 64 images cannot be divided by 3). When an
elastic launcher restarts with more or fewer ranks, training resumes from the last checkpoint.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does without, but says so at import

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    arguments = parse_arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts, or every rank of a node lands on GPU 0
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(arguments, device)
    gc.collect()  # torch 2.13 on CPU can abort at exit when a DDP model outlives its group; train()'s is gone now
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0  # by an elastic launcher
    shared = Path(os.environ.get("COMPOSESIM_SHARED", "checkpoints"))
    parser = argparse.ArgumentParser(description="Train a small CNN on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="images per step, of all ranks together")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=shared, metavar="DIR", help="a folder that all nodes share")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", default=restarted, help="resume from the checkpoint in DIR")
    return parser.parse_args()


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)  # the same on all ranks: nothing random here may differ between them
    training, test = load_digits()
    batch_size = max(arguments.batch_size, world_size)  # at least one image for each rank
    shares = Shares(len(training), batch_size, arguments.seed)
    loader = DataLoader(training, batch_sampler=shares)
    model = DistributedDataParallel(build_model().to(device))
    optimizer = Adam(model.parameters(), lr=arguments.lr)
    checkpoint = arguments.checkpoint / "checkpoint.pt"
    step = begin(checkpoint, model.module, optimizer, arguments.resume, device)

    for epoch in range(step // shares.steps, arguments.epochs):
        shares.epoch, shares.first = epoch, step % shares.steps
        model.train()
        for images, labels in loader:
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                mean_loss = loss.detach() / world_size
                dist.all_reduce(mean_loss)  # every rank calls the collective; only then does one rank print
                report(step=step, epoch=epoch, loss=round(mean_loss.item(), 4))
            if rank == 0 and (step % arguments.checkpoint_every == 0 or step % shares.steps == 0):
                save_checkpoint(checkpoint, model.module, optimizer, step)
    report(step=step, epoch=arguments.epochs, accuracy=round(evaluate(model.module, test, device), 4))


class Shares:
    """
    This rank's share of the images of each step.

    A DistributedSampler divides an epoch, so that another number of ranks gets other batches. Here the batches are the same for
    any number of ranks, and each batch is divided: training can resume in the middle of an epoch with fewer ranks.
    """

    def __init__(self, images: int, batch_size: int, seed: int) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.steps = images // batch_size  # in an epoch: no ragged last batch
        self.epoch = self.first = 0

    def __iter__(self) -> Iterator[list[int]]:
        """The indices of each step, beginning with step `first`; each epoch has its own order."""
        order = torch.randperm(self.images, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for batch in order.split(self.batch_size)[self.first : self.steps]:
            yield batch[dist.get_rank() :: dist.get_world_size()].tolist()

    def __len__(self) -> int:
        return self.steps - self.first


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, test), every fifth image for the test. Images are float32 (1, 8, 8) in 0..1, labels int64."""
    text = gzip.decompress((Path(__file__).resolve().parent / "data" / "digits.csv.gz").read_bytes())
    values = bytearray(map(int, text.replace(b"\n", b",").rstrip(b",").split(b",")))  # no value is above 16
    rows = torch.frombuffer(values, dtype=torch.uint8).view(-1, 65)
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    is_test = torch.arange(len(rows)) % 5 == 0
    return TensorDataset(images[~is_test], labels[~is_test]), TensorDataset(images[is_test], labels[is_test])


def build_model() -> nn.Module:
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


@torch.no_grad()
def evaluate(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """The fraction of test images that are classified correctly."""
    model.eval()
    # Each image is on one rank: a DistributedSampler would pad uneven shares and count some images twice.
    images, labels = test[dist.get_rank() :: dist.get_world_size()]
    right = model(images.to(device)).argmax(dim=1) == labels.to(device)
    counts = torch.tensor([int(right.sum()), len(labels)], device=device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def begin(path: Path, model: nn.Module, optimizer: Optimizer, resume: bool, device: torch.device) -> int:
    """Return how many steps are done: those of the checkpoint, or none."""
    step = 0
    if resume and path.exists():
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    elif dist.get_rank() == 0:  # an unwritable folder fails now, and a restart finds no older checkpoint
        save_checkpoint(path, model, optimizer, step)
    first = torch.tensor(step, device=device)
    dist.broadcast(first, src=0)
    if first != step:  # without this check, ranks would wait for each other forever
        raise SystemExit(f"{path} is of step {step} here, of step {int(first)} on rank 0: is DIR a shared folder?")
    return step


def save_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Replace the checkpoint in one step: a crash leaves the old one or the new one, never half of one."""
    # It holds no random state: the order of the images depends only on seed and epoch, and nothing else is random.
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def report(**metrics: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
