"""Time four torchrun processes that are started side by side on this machine."""

from __future__ import annotations

import shutil
import socket

from bench.measure import Contestant, NotMeasurableError
from bench.process import run_together
from bench.setting import Setting

NAME = "4 × torchrun"
NAME_AS_TYPED = "4 × torchrun, threads left to torch"


def contestants(setting: Setting) -> list[Contestant]:
    """Return torchrun with the thread count that all use here, and plain torchrun, which is shown but not judged."""
    torchrun = setting.python.with_name("torchrun")
    if not torchrun.exists():
        raise NotMeasurableError("this environment has no torchrun: run `make setup`")

    def measure(environment: dict[str, str]) -> float:
        try:
            return run_together(
                _commands(str(torchrun)), folder=setting.folder, environment=environment, expect='"accuracy"'
            ).seconds
        finally:
            shutil.rmtree(setting.folder / "checkpoints", ignore_errors=True)

    equal = {**setting.environment, "OMP_NUM_THREADS": str(setting.threads)}
    return [
        Contestant(name=NAME, measure=lambda: measure(equal)),
        Contestant(name=NAME_AS_TYPED, measure=lambda: measure(setting.environment), rounds=2),
    ]


def _commands(torchrun: str) -> list[list[str]]:
    port = str(free_port())
    return [
        [torchrun, "--nnodes", "4", "--node-rank", str(node), "--nproc-per-node", "1"]
        + ["--master-addr", "127.0.0.1", "--master-port", port, "train_ddp.py"]
        for node in range(4)
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
