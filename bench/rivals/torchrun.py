"""Time four torchrun processes that are started side by side on this machine."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping

from bench.measure import Contestant, NotMeasurableError
from bench.process import run_together
from bench.setting import Setting

NAME = "4 × torchrun"
NAME_AS_TYPED = "4 × torchrun, threads left to torch"


def contestants(setting: Setting) -> list[Contestant]:
    """Return torchrun with the thread count that all use here, and plain torchrun, which is shown but not judged."""
    as_typed = Contestant(name=NAME_AS_TYPED, measure=lambda: measure(setting, setting.environment), rounds=2)
    return [contestant(setting), as_typed]


def contestant(setting: Setting, script: str = "train_ddp.py", expect: str = '"accuracy"') -> Contestant:
    """Return torchrun with the thread count that all use here."""
    equal = {**setting.environment, "OMP_NUM_THREADS": str(setting.threads)}
    return Contestant(name=NAME, measure=lambda: measure(setting, equal, script, expect))


def measure(
    setting: Setting, environment: Mapping[str, str], script: str = "train_ddp.py", expect: str = '"accuracy"'
) -> float:
    """Run the script once on four torchruns, and return the seconds up to the last exit."""
    torchrun = setting.python.with_name("torchrun")
    if not torchrun.exists():
        raise NotMeasurableError("this environment has no torchrun: run `make setup`")
    port = str(free_port())
    commands = [
        [str(torchrun), "--nnodes", "4", "--node-rank", str(node), "--nproc-per-node", "1"]
        + ["--master-addr", "127.0.0.1", "--master-port", port, script]
        for node in range(4)
    ]
    try:
        return run_together(commands, folder=setting.folder, environment=environment, expect=expect).seconds
    finally:
        shutil.rmtree(setting.folder / "checkpoints", ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
