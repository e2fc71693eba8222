"""Row 12: measure how the cost of commands grows with the number of nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import NotMeasurableError, Samples
from bench.memory import resident
from bench.process import RunFailedError
from bench.setting import Setting

KEYS = ("12",)
SIZES = (1, 2, 4, 8, 16, 32, 64)
COMMANDS = ("up --detach", "ps", "stats", "down", "report")
FIGURE = "curves.svg"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    row = Row(
        key="12",
        title="commands on runs of 1 to 64 nodes",
        goals=[
            Goal(
                text=f"{command}: {SIZES[-1]} nodes ≤ 2.4 × {SIZES[-2]} nodes",
                mine=_name(command, SIZES[-1]),
                rival=_name(command, SIZES[-2]),
                factor=2.4,
            )
            for command in COMMANDS
        ],
        notes=[
            "Nodes that wait, `--launcher env`, `--image host`: no node loads torch.",
            f"![Seconds by number of nodes]({FIGURE})",
        ],
    )
    try:
        setting.require_engine()
        composesim = setting.composesim()
        memory: dict[str, dict[int, int]] = {"composesim": {}, "the master": {}}
        for _ in range(setting.repeats):
            for nodes in SIZES:
                for command, seconds in _once(setting, composesim, nodes, memory):
                    row.samples.setdefault(_name(command, nodes), Samples()).seconds.append(seconds)
    except (NotMeasurableError, RunFailedError) as error:
        row.missing = {"composesim": str(error)}
    else:
        row.notes += [_growth(row, command) for command in COMMANDS]
        row.notes += [_memory(process, sizes) for process, sizes in memory.items()]
    yield row


def draw(figures: dict[str, list[float]], path: Path) -> None:
    """Write the curves as SVG: nodes and seconds, both on logarithmic axes, from the seconds of all contestants."""
    from bench.plot import Curve, log_log_plot

    curves = [
        Curve(
            command,
            [(nodes, median(figures[_name(command, nodes)])) for nodes in SIZES if figures.get(_name(command, nodes))],
        )
        for command in COMMANDS
    ]
    path.write_text(log_log_plot(curves, across="nodes", up="seconds"))


def _once(setting: Setting, composesim: str, nodes: int, memory: dict[str, dict[int, int]]) -> list[tuple[str, float]]:
    """Run each command once on a run of this size, and return their seconds; put in `memory` how much the run takes."""
    name = setting.new_name()
    start = [composesim, "up", "--detach", "--nodes", str(nodes), "--engine", "docker", "--image", "host"]
    start += ["--launcher", "env", "--force", "--name", name, "waiting.py"]
    words = {
        "ps": ["ps"],
        "stats": ["stats", "--run", name],
        "down": ["down", "--run", name],
        "report": ["report", "--run", name],
    }
    try:
        took = [("up --detach", setting.run(start).seconds)]
        memory["composesim"][nodes] = resident(composesim, name)
        memory["the master"][nodes] = resident("node/__main__.py master", f"--nodes {nodes} ")
        for command, arguments in words.items():
            # The report of a run that was ended has the exit code of the run, 130.
            took.append((command, setting.run([composesim, *arguments], codes=(0, 130)).seconds))
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)
    return took


def _growth(row: Row, command: str) -> str:
    """Return how much a further node costs, between the middle and the largest size."""
    few, many = SIZES[len(SIZES) // 2], SIZES[-1]
    difference = row.samples[_name(command, many)].median - row.samples[_name(command, few)].median
    return f"`{command}`: {1000 * difference / (many - few):.0f} ms for each node beyond {few}"


def _memory(process: str, sizes: dict[int, int]) -> str:
    few, many = SIZES[0], SIZES[-1]
    each = (sizes[many] - sizes[few]) / (many - few)
    return (
        f"memory of {process}: {sizes[few] / 2**20:.0f} MiB with {few} node, {sizes[many] / 2**20:.0f} MiB with {many}, "
        f"{each / 2**20:.2f} MiB for each further node"
    )


def _name(command: str, nodes: int) -> str:
    return f"{command}, {nodes} node{'s' if nodes > 1 else ''}"
