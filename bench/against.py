"""
Compare this checkout with another revision: the same commands from both, in turn, in the same environment.

    make bench-against REV=main
    .venv/bin/python -m bench.against main --only plan,up-local --rounds 9

The exit code is 1 if a row is slower: more than a tenth in the median, with no run as fast as the slowest of the other revision.
CPU seconds are those of composesim and the programs that it starts; on a busy machine they say more than the clock.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench import machine
from bench.leftovers import sweep
from bench.measure import Contestant, alternate
from bench.setting import REPOSITORY, Setting, prepared

ROWS = {
    "help": ("--help",),
    "plan": ("plan", "--nodes", "4", "train_ddp.py"),
    "render": ("render", "rendered", "--nodes", "1000", "--engine", "docker", "--image", "host", "idle.py"),
    "up-local": ("up", "--engine", "local", "--nodes", "4", "train_ddp.py"),
    "up-docker": ("up", "--engine", "docker", "--nodes", "4", "train_ddp.py"),
}
TOLERATED = 1.1
START = "import sys; sys.path.insert(0, {tree!r}); sys.argv[0] = 'composesim'; from compose_sim.__main__ import main; main()"


def main() -> int:
    arguments = _parse_arguments()
    slower = []
    with revision(arguments.revision) as tree, prepared(arguments.rounds) as setting:
        print(f"| row | | this, {machine.commit()} | {arguments.revision} | ratio |\n|---|---|---|---|---|", flush=True)
        try:
            for row in arguments.only:
                for unit, ours, theirs in measure(setting, ROWS[row], REPOSITORY, tree):
                    print(_line(row, unit, ours, theirs), flush=True)
                    slower += [f"{row} ({unit})"] if is_slower(ours, theirs) else []
        finally:
            sweep(setting.prefix)
    if slower:
        print(f"slower than {arguments.revision}: {', '.join(slower)}", file=sys.stderr)
    return 1 if slower else 0


def is_slower(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether ours take longer than the noise and a tenth explain; a command that never succeeds takes for ever."""
    if not (ours and theirs):
        return bool(theirs)
    return median(ours) > TOLERATED * median(theirs) and min(ours) > max(theirs)


def measure(
    setting: Setting, words: Sequence[str], *trees: Path
) -> Iterator[tuple[str, Sequence[float], Sequence[float]]]:
    """Yield (unit, our values, their values) of one command, measured in both trees in turn."""
    cpu: dict[str, list[float]] = {str(tree): [] for tree in trees}

    def timed(tree: Path) -> float:
        named = ["--name", setting.new_name()] if words[0] == "up" else []
        try:
            command = [str(setting.python), "-c", START.format(tree=str(tree)), *words[:1], *named, *words[1:]]
            finished = setting.run(command)
        finally:
            shutil.rmtree(setting.folder / "rendered", ignore_errors=True)
        cpu[str(tree)].append(finished.cpu_seconds)
        return finished.seconds

    contestants = [Contestant(name=str(tree), measure=lambda tree=tree: timed(tree)) for tree in trees]
    alternate(contestants, 1)  # compiles the modules of both
    for values in cpu.values():
        values.clear()
    samples = alternate(contestants, setting.repeats)
    ours, theirs = (str(tree) for tree in trees)
    yield "s", samples[ours].seconds, samples[theirs].seconds
    yield "CPU s", cpu[ours], cpu[theirs]


@contextmanager
def revision(name: str) -> Iterator[Path]:
    """Check a revision out into a temporary folder."""
    worktree = ["git", "-C", str(REPOSITORY), "worktree"]
    # Not in /tmp, which is private to every node.
    with tempfile.TemporaryDirectory(prefix="composesim-bench.", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        tree = Path(folder, "other")
        if subprocess.run([*worktree, "add", "--quiet", "--detach", tree, name]).returncode:
            sys.exit(f"bench: {name!r} is not a revision of this repository")
        try:
            yield tree
        finally:
            subprocess.run([*worktree, "remove", "--force", tree], check=True)


def _line(row: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratio = f"{median(ours) / median(theirs):.2f}" if ours and theirs else ""
    return f"| {row} | {unit} | {_figures(ours)} | {_figures(theirs)} | {ratio} |"


def _figures(values: Sequence[float]) -> str:
    return f"{median(values):.2f} [{min(values):.2f}–{max(values):.2f}]" if values else "failed"


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Compare with another revision.")
    parser.add_argument("revision", metavar="REV", help="a commit, branch or tag")
    parser.add_argument(
        "--only", type=_rows, default=list(ROWS), metavar="ROW[,ROW]", help=f"rows, of {', '.join(ROWS)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row (default: 5)")
    return parser.parse_args()


def _rows(text: str) -> list[str]:
    for row in text.split(","):
        if row not in ROWS:
            raise argparse.ArgumentTypeError(f"{row!r} is not a row; the rows are {', '.join(ROWS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
