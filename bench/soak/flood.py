"""Check that no line is lost or out of order when all ranks print as fast as they can."""

from __future__ import annotations

import re
import time

from bench.soak.setting import Row, Soak

LINES, NODES = 300_000, 4
_LINE = re.compile(r"node-(\d+) +\| rank (\d+) line (\d+)")


def measure(soak: Soak) -> Row:
    """Check both the output of `up` and the logs in the run's folder."""
    name = soak.new_name()
    started = time.monotonic()
    process = soak.start(name, "--nodes", str(NODES), "--env", f"FLOOD_LINES={LINES}", "flood.py")
    code = process.wait(1200)
    seconds = time.monotonic() - started
    printed: dict[int, list[int]] = {rank: [] for rank in range(NODES)}
    with (soak.folder / f"{name}.out").open() as file:
        for line in file:
            match = _LINE.match(line)
            if match:
                printed[int(match[2])].append(int(match[3]))
    wanted = list(range(LINES))
    kept = {rank: _kept(soak, name, rank) for rank in range(NODES)}
    lost = sum(LINES - len(set(numbers)) for numbers in (*printed.values(), *kept.values()))
    in_order = all(numbers == wanted for numbers in (*printed.values(), *kept.values()))
    return Row(
        what=f"log lines under a flood of {LINES:,} a node on {NODES} nodes",
        wanted="none lost, order kept per rank",
        seen=f"{lost} lost of {2 * NODES * LINES:,} (on screen and in files), "
        + (f"order kept, {seconds:.0f} s" if in_order else "order NOT kept"),
        reached=code == 0 and lost == 0 and in_order,
    )


def _kept(soak: Soak, name: str, rank: int) -> list[int]:
    path = next(soak.run_folder(name).glob(f"**/logs/node-{rank}.{rank}.log"))
    return [int(line.rpartition(" ")[2]) for line in path.read_text().splitlines() if line.startswith("rank ")]
