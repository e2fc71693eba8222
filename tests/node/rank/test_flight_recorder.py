"""Torch's flight recorder shows what a rank waits for, although its main thread spins; torch's own tool reads the dumps."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.node.harness import Cluster

pytestmark = pytest.mark.train

# What a rank does on a GPU: a collective returns at once, and the main thread spins until it has completed.
SCRIPT = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
context = next(module for name, module in sys.modules.items() if name.endswith("rank.context")).here()
context.progress.set("on_device", 1)
for step in range(301):
    if step == 300 and dist.get_rank() == 1:
        time.sleep(600)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    while not work.is_completed():
        pass
"""


def test_a_rank_that_spins_reports_what_it_waits_for(cluster: Callable[..., Cluster]) -> None:
    made = cluster(SCRIPT)
    made.environment["COMPOSESIM_STALL_SECONDS"] = "3"
    made.start(2)

    def stalled(node: str) -> list[dict[str, Any]]:
        """Return the stalls that tell what is pending: on a busy machine, another may come before the ranks have met."""
        return [event for event in made.events(node, "stalled") if "pending" in event["data"]]

    waits, sleeps = (made.wait_for(partial(stalled, node))[0]["data"] for node in ("node-0", "node-1"))

    assert [(each["op"], each["number"], each["ranks"], each["at"][1]) for each in waits["pending"]] == [
        ("all_reduce", 301, [0, 1], 12)
    ]
    assert (sleeps["pending"], sleeps["reached"]) == ([], {"0": 300})
    assert [each["locked_in_c"] for each in (waits, sleeps)] == [False, False]
    folder = made.folder / "observations" / "flight"
    dumped = pickle.loads((folder / "rank_0").read_bytes())
    assert "script.py" in dumped["entries"][-1]["frames"][-1]["filename"]  # composesim's own frames are left out
    if _torch_analyzes_gloo():
        analyzed = subprocess.run(
            [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "collective: gloo:all_reduce\nmissing ranks: {1}" in analyzed.stdout + analyzed.stderr
        assert "script.py:12" in analyzed.stdout + analyzed.stderr
    # Writing a dump is work, but no progress.
    last = {node: made.events(node, "stalled")[-1]["t"] for node in ("node-0", "node-1")}
    assert [event for node, t in last.items() for event in made.events(node, "resumed") if event["t"] > t] == []


def _torch_analyzes_gloo() -> bool:
    """Return whether torch's own tool reads what gloo records: that of torch 2.11 and earlier accepts only NCCL."""
    folder = Path(importlib.util.find_spec("torch").origin or "").parent  # type: ignore[union-attr]
    types = folder / "distributed" / "flight_recorder" / "components" / "types.py"
    return types.exists() and "gloo" in types.read_text()
