"""What of a Ray program outlives the processes that it runs in? A task is tried again, and an actor is started anew.

    composesim up --recipe ray --nodes 2 ray_faults.py
    python ray_faults.py

A task knows nothing of others, so Ray runs it again, on another node if its own is gone. An actor has a state: Ray starts it anew,
and what it knew it must find where it wrote it down. One of each is killed here; `composesim fault kill node-1` kills all that a
node has. Tasks go to wherever there is a free CPU: also to nodes that `composesim scale` adds meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import ray


@ray.remote(num_cpus=1, max_retries=3, scheduling_strategy="SPREAD")
def square(number: int, seconds: float, folder: Path) -> tuple[int, str]:
    """The square, and the node that found it; the process that is asked for the square of 3 first dies of it."""
    accident = folder / "accident"
    if number == 3 and not accident.exists():
        accident.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)  # what a real task would compute
    return number**2, ray.get_runtime_context().get_node_id()


# Restarts are of the actor, retries of the calls that it was about to answer: a call may be carried out twice.
@ray.remote(num_cpus=0.1, max_restarts=3, max_task_retries=3)
class Counter:
    """Counts, and writes down how far it is where the next process finds it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.count = int(file.read_text()) if file.exists() else 0

    def add(self) -> tuple[int, str]:
        """The count, and which process counted."""
        self.count += 1
        self.file.write_text(str(self.count))
        return self.count, ray.get_runtime_context().get_worker_id()

    @ray.method(max_task_retries=0)  # once is enough
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    arguments = parse_arguments()
    ray.init()  # the cluster of RAY_ADDRESS, if that is set; else one on this machine alone
    folder = Path(arguments.storage, "faults")
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    folder.mkdir(parents=True)
    run_tasks(arguments, folder)
    run_actor(folder)


def parse_arguments() -> argparse.Namespace:
    shared = os.environ.get("COMPOSESIM_SHARED", Path("checkpoints").absolute())
    parser = argparse.ArgumentParser(description="Kill a task and an actor, and lose nothing.")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2, help="that each task takes")
    parser.add_argument("--storage", default=str(shared), metavar="DIR", help="a folder that all nodes share")
    return parser.parse_args()


def run_tasks(arguments: argparse.Namespace, folder: Path) -> None:
    pending = [square.remote(number, arguments.seconds, folder) for number in range(arguments.tasks)]
    total, nodes = 0, set()
    while pending:
        (done,), pending = ray.wait(pending)
        value, node = ray.get(done)
        total += value
        nodes.add(node)
        report(step=arguments.tasks - len(pending), sum=total, nodes=len(nodes))
    expected = sum(number**2 for number in range(arguments.tasks))
    if total != expected:
        raise SystemExit(f"the sum of the squares is {total} and not {expected}: a task was lost, or counted twice")


def run_actor(folder: Path) -> None:
    counter = Counter.remote(folder / "count")
    before, process = ray.get([counter.add.remote() for _ in range(5)])[-1]
    with suppress(ray.exceptions.RayActorError):  # nobody answers
        ray.get(counter.die.remote())
    after, another = ray.get(counter.add.remote())
    report(step=1, before=before, after=after)
    if after != before + 1 or another == process:
        raise SystemExit(f"worker {another} counted {after} after worker {process} had counted {before}")


def report(**metrics: int) -> None:
    """One JSON line with a "step": composesim shows it, and puts it into its report."""
    print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
