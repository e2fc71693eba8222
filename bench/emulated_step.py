"""
Time a training step on an emulated GPU and the same step on the CPU. Prints JSON lists of seconds, one entry per round.

This is a separate program, because CUDA is emulated in the process. The two steps are timed alternately, in seconds of CPU time
of the thread, so that a busy machine affects both alike. Arguments: the number of rounds, and the milliseconds that a step should take.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["COMPOSESIM_EMULATED_GPUS"] = "1"
from compose_sim.node.rank import emulate

emulate.install()
import torch  # noqa: E402 - emulation begins when torch is imported
from torch import nn  # noqa: E402 - as above

STEPS = 100  # of each round


def a_training(device: str, batch: int) -> Callable[[], float]:
    """Return the step of a small transformer with a hundred operations: dropout, clipping, AdamW."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 16, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    features, targets = torch.randn(batch, 16, 64), torch.randint(10, (batch,))

    def step() -> float:
        begun = time.thread_time()
        x, y = features.to(device), targets.to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        return time.thread_time() - begun

    return step


def honestly(call: Callable[[], Any]) -> Any:
    """Run it on the real CPU, without the mode that emulates."""
    mode = torch.overrides._pop_mode()
    try:
        return call()
    finally:
        torch.overrides._push_mode(mode)


def main(rounds: int, milliseconds: float) -> None:
    """Print the seconds of STEPS steps on each device, one entry per round."""
    torch.set_num_threads(1)
    trial = honestly(lambda: a_training("cpu", 32))
    took = sorted(honestly(trial) for _ in range(50))[25]
    batch = max(1, round(32 * milliseconds / 1000 / took))
    emulated, plain = a_training("cuda", batch), honestly(lambda: a_training("cpu", batch))
    for _ in range(20):
        emulated(), honestly(plain)
    seconds: dict[str, list[float]] = {"emulated": [], "cpu": []}
    for _ in range(rounds):
        pairs = [(emulated(), honestly(plain)) for _ in range(STEPS)]
        seconds["emulated"].append(sum(pair[0] for pair in pairs))
        seconds["cpu"].append(sum(pair[1] for pair in pairs))
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
