"""Which learning rate suits a small PaddlePaddle model best? One actor of Ray trains each of them, all at the same time.

    composesim up --recipe paddle-ray --nodes 2 paddle_ray_search.py
    python paddle_ray_search.py

Each actor saves its model after every epoch. One of them dies in the middle, on purpose: Ray starts it anew and makes the call once
more, and it goes on from what it had saved. Each call has a time limit of its own. The best model is exported with paddle.jit, loaded
again by a task elsewhere, and must say the same there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

RATES = (1e-1, 1e-2, 1e-3, 1e-4)


# Restarts are of the actor, retries of the calls that it was about to answer.
@ray.remote(num_cpus=0.5, max_restarts=2, max_task_retries=2)
class Trainer:
    """One model with one learning rate, and the file that it is saved to."""

    def __init__(self, rate: float, folder: Path, seed: int) -> None:
        import paddle  # on the node: the program that only waits for results need not load it

        paddle.seed(seed)
        self.rate, self.file, self.accident = rate, folder / f"{rate:g}.pdparams", folder / "accident"
        self.network = build_network()
        self.optimizer = paddle.optimizer.Adam(learning_rate=rate, parameters=self.network.parameters())
        self.epoch = self.resumed_at = 0
        if self.file.exists():
            state = paddle.load(str(self.file))
            self.network.set_state_dict(state["model"])
            self.optimizer.set_state_dict(state["optimizer"])
            self.epoch = self.resumed_at = state["epoch"]
        print(f"learning rate {rate:g} begins at epoch {self.epoch}", flush=True)

    def train(self, epochs: int, seconds: float) -> dict[str, Any]:
        """Train up to so many epochs, and no longer than that; what came of it."""
        until = time.monotonic() + seconds
        training, test = load_digits()
        while self.epoch < epochs and time.monotonic() < until:
            loss = self._epoch(*training)
            self._save()
            print(f"learning rate {self.rate:g}, epoch {self.epoch}: loss {loss:.4f}", flush=True)
            if self.rate == RATES[0] and not self.accident.exists():
                self.accident.touch()
                os.kill(os.getpid(), signal.SIGKILL)  # as if the kernel had killed it for want of memory
        accuracy = float((self.predict(test[0]).argmax(axis=1) == test[1]).mean())
        node = os.environ.get("COMPOSESIM_NODE", "here")
        facts = {"lr": self.rate, "accuracy": round(accuracy, 4), "epoch": self.epoch, "resumed_at": self.resumed_at}
        return {**facts, "in_time": self.epoch == epochs, "node": node, "gpus": ray.get_gpu_ids()}

    def predict(self, images: np.ndarray) -> np.ndarray:
        import paddle

        self.network.eval()
        with paddle.no_grad():
            return self.network(paddle.to_tensor(images)).numpy()

    def export(self, path: str) -> None:
        """Write the model as a program that needs none of this code: path.json and path.pdiparams."""
        import paddle

        self.network.eval()
        shape = paddle.static.InputSpec([None, 1, 8, 8], "float32", "images")
        paddle.jit.save(paddle.jit.to_static(self.network, input_spec=[shape], full_graph=True), path)

    def _epoch(self, images: np.ndarray, labels: np.ndarray) -> float:
        import paddle

        self.network.train()
        order = np.random.default_rng(self.epoch).permutation(len(labels))
        for batch in np.array_split(order, len(order) // 64):
            logits = self.network(paddle.to_tensor(images[batch]))
            loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(labels[batch]))
            loss.backward()
            self.optimizer.step()
            self.optimizer.clear_grad()
        self.epoch += 1
        return float(loss)

    def _save(self) -> None:
        import paddle

        state = {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
        partial = self.file.with_suffix(".partial")
        paddle.save(state, str(partial))
        partial.replace(self.file)  # in one move: a crash leaves the old one or the new one


@ray.remote(num_cpus=0.5, max_retries=3, scheduling_strategy="SPREAD")
def predict_elsewhere(path: str, images: np.ndarray) -> np.ndarray:
    """What an exported model says."""
    import paddle

    model = paddle.jit.load(path)
    model.eval()
    return model(paddle.to_tensor(images)).numpy()


def main() -> None:
    arguments = parse_arguments()
    ray.init()  # the cluster of RAY_ADDRESS, if that is set; else one on this machine alone
    folder = Path(arguments.storage, "search")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    folder.mkdir(parents=True)
    share = 0.5 if ray.cluster_resources().get("GPU") else 0  # two models a GPU, where there are any
    trainers = {rate: Trainer.options(num_gpus=share).remote(rate, folder, arguments.seed) for rate in RATES}
    pending = [trainer.train.remote(arguments.epochs, arguments.seconds) for trainer in trainers.values()]
    results: list[dict[str, Any]] = []
    while pending:
        (done,), pending = ray.wait(pending)
        results.append(ray.get(done))
        print(json.dumps({"step": len(results), **results[-1]}), flush=True)
    best = max(results, key=lambda result: result["accuracy"])
    trainer = trainers.pop(best["lr"])
    for other in trainers.values():
        ray.kill(other)  # an actor holds its CPUs and its share of a GPU until it is gone
    difference = export(trainer, str(folder / "best"), arguments.seconds)
    print(json.dumps({"step": len(results), "best_lr": best["lr"], "accuracy": best["accuracy"], "export": difference}))


def export(trainer: Any, path: str, seconds: float) -> float:
    """Export a trainer's model, and load it elsewhere: the largest difference between what they say. Ends where it is one."""
    _, (images, _) = load_digits()
    ray.get(trainer.export.remote(path), timeout=seconds)
    says = [trainer.predict.remote(images), predict_elsewhere.remote(path, images)]
    own, loaded = ray.get(says, timeout=seconds)
    difference = float(np.abs(own - loaded).max())
    if difference > 1e-5:
        raise SystemExit(f"the exported model differs from the trained one by {difference}")
    return difference


def parse_arguments() -> argparse.Namespace:
    shared = os.environ.get("COMPOSESIM_SHARED", Path("checkpoints").absolute())
    parser = argparse.ArgumentParser(description="Train one model per learning rate, and export the best.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="that one call may train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", default=str(shared), metavar="DIR", help="a folder that all nodes share")
    return parser.parse_args()


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(training, test), every fifth image for the test. Images are float32 (1, 8, 8) in 0..1, labels int64."""
    folders = (folder / "data" / "digits.csv.gz" for folder in Path(__file__).resolve().parents)
    with gzip.open(next(file for file in folders if file.is_file())) as file:
        rows = np.loadtxt(file, delimiter=",", dtype="int64")
    images, labels = (rows[:, :64] / 16).astype("float32").reshape(-1, 1, 8, 8), rows[:, 64]
    is_test = np.arange(len(rows)) % 5 == 0
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def build_network() -> Any:
    from paddle import nn

    convolutions = [nn.Conv2D(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2D(16, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.MaxPool2D(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


if __name__ == "__main__":
    main()
