"""How does more data than memory holds flow through a cluster? Blocks of it, streamed by Ray Data through two kinds of workers.

    composesim up --recipe ray --nodes 2 ray_data.py
    python ray_data.py

Tasks on all nodes draw noisy copies of handwritten digits, actors that have learned the mean picture of each digit read them, and the
driver counts while they still work. Only some blocks exist at any time: Ray Data holds the first workers back when the last
ones lag behind.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import ray

Batch = dict[str, np.ndarray]


def main() -> None:
    arguments = parse_arguments()
    ray.init()  # the cluster of RAY_ADDRESS, if that is set; else one on this machine alone
    ray.data.DataContext.get_current().enable_progress_bars = False
    digits = ray.put(read_digits())  # once on each node, however many workers look at them
    readers = ray.data.ActorPoolStrategy(size=arguments.readers)
    stream = (
        ray.data.range(arguments.images, override_num_blocks=arguments.blocks)
        .map_batches(draw, fn_args=(digits, arguments.noise))
        .map_batches(Reader, fn_constructor_args=(digits,), compute=readers, num_cpus=0.5)
    )
    read = right = 0
    for step, batch in enumerate(stream.iter_batches(batch_size=None), 1):  # each block as soon as it is there
        read += len(batch["right"])
        right += int(batch["right"].sum())
        # One JSON line with a "step": composesim shows it, and puts it into its report.
        print(json.dumps({"step": step, "images": read, "accuracy": round(right / read, 4)}), flush=True)
    if read != arguments.images:
        raise SystemExit(f"{read} images came out, and {arguments.images} went in")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read noisy digits, streamed through a cluster.")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=20, help="in which they travel")
    parser.add_argument("--readers", type=int, default=2, help="actors that read")
    parser.add_argument("--noise", type=float, default=4.0, help="standard deviation; pixels are 0 to 16")
    return parser.parse_args()


def read_digits() -> np.ndarray:
    """uint8 (1797, 65), 64 pixels of 0..16 and the digit. The driver reads them, so that no node needs the file."""
    folder = next(each for each in Path(__file__).resolve().parents if (each / "data" / "digits.csv.gz").exists())
    return np.loadtxt(gzip.open(folder / "data" / "digits.csv.gz"), delimiter=",", dtype=np.uint8)


def draw(batch: Batch, digits: ray.ObjectRef, noise: float) -> Batch:
    """A task: numbers in, noisy pictures of digits and what they show out."""
    rows = ray.get(digits)[batch["id"] % 1797]
    generator = np.random.default_rng(int(batch["id"][0]))  # a block that is made again is the same
    pictures = rows[:, :64] + generator.normal(0, noise, (len(rows), 64)).astype(np.float32)
    return {"picture": pictures, "digit": rows[:, 64]}


class Reader:
    """An actor: what takes long to prepare, here the mean pictures, it prepares once for all blocks."""

    def __init__(self, digits: ray.ObjectRef) -> None:
        rows = ray.get(digits)
        self.means = np.stack([rows[rows[:, 64] == digit, :64].mean(axis=0) for digit in range(10)])

    def __call__(self, batch: Batch) -> Batch:
        """Whether the digit whose mean is nearest is the one that is shown."""
        distances = ((batch["picture"][:, None, :] - self.means) ** 2).sum(axis=2)
        return {"right": distances.argmin(axis=1) == batch["digit"]}


if __name__ == "__main__":
    main()
