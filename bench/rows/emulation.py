"""Row 7: measure how much the emulation of CUDA adds to a training step of 10 ms on the CPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence

from bench.goals import Goal, Row
from bench.measure import Samples
from bench.setting import REPOSITORY, Setting

KEYS = ("7",)
MILLISECONDS = 10
EMULATED = f"100 steps of {MILLISECONDS} ms on an emulated GPU"
PLAIN = "the same 100 steps on the CPU"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="7",
        title="CUDA emulated on the CPU, one rank's training step",
        goals=[Goal(text="≤ 1.05 × the script for the CPU", mine=EMULATED, rival=PLAIN, factor=1.05)],
        notes=["CPU time of one thread; the two steps in turn, one by one, in one process."],
    )
    command = [str(setting.python), "-m", "bench.emulated_step", str(setting.repeats), str(MILLISECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=setting.environment)
    if done.returncode:
        row.missing = dict.fromkeys((EMULATED, PLAIN), done.stderr.strip().rpartition("\n")[2])
    else:
        seconds = json.loads(done.stdout.splitlines()[-1])
        row.samples = {EMULATED: Samples(seconds=seconds["emulated"]), PLAIN: Samples(seconds=seconds["cpu"])}
    yield row
