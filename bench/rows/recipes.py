"""Rows 8 and 9: measure how long a framework takes until all nodes are there, and how fast RLlib's samplers are in containers."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, alternate
from bench.process import RunFailedError, run_together
from bench.rivals import ray_cluster
from bench.rivals.torchrun import free_port
from bench.setting import BENCH, REPOSITORY, Setting

KEYS = ("8", "9")
NODES = 4
PROGRAMS = REPOSITORY / ".venv-recipes" / "bin"
RAY, RAY_WITH_HEAD = "ray start, four times", "ray start, five times: a head without CPUs, four nodes"
HOROVODRUN = "horovodrun -np 4 on localhost"
LAUNCHERS, LAUNCHER = "paddle.distributed.launch, four times", "paddle.distributed.launch, once, four ranks"
RIVALS = {"ray": (RAY, RAY_WITH_HEAD), "horovod": (HOROVODRUN,), "paddle": (LAUNCHERS, LAUNCHER)}
CONTAINED, BARE = "sampling in containers", "sampling in bare processes"
SAMPLES = 100_000

READY_NOTES = [
    "Seconds from the command's start until Ray's GCS had all nodes, or until rank 0 of Horovod or Paddle was through its init with "
    "all ranks.",
    "composesim's Ray cluster is a head without CPUs and four nodes; of four `ray start` one is both. All nodes but the head are "
    "started at once. `ray start` comes back when its node is registered.",
    "Four of Paddle's launchers that meet are four nodes; one with four ranks is one node, and is not judged.",
]
SAMPLING_NOTES = [
    f"Two samplers of five environments on two nodes: seconds for {SAMPLES:,} steps of CartPole that the driver gets, by the median of "
    "eight turns of 4,000, after two that do not count. ≥ 0.9 × as many a second is ≤ 1.11 × the seconds.",
]


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    try:
        setting.require_engine()
        if not (PROGRAMS / "composesim").exists():
            raise NotMeasurableError(".venv-recipes does not exist: run `make recipes`")
        problem = ""
    except NotMeasurableError as error:
        problem = str(error)
    for script in (BENCH / "scripts").glob("*.py"):
        shutil.copy(script, setting.folder)
    if "8" in wanted:
        yield _ready(setting, problem)
    if "9" in wanted:
        yield _sampling(setting, problem)


def _ready(setting: Setting, problem: str) -> Row:
    pairs = [(_mine(name), rival) for name, rivals in RIVALS.items() for rival in rivals]
    goals = [
        Goal(text=f"≤ 1.25 × {rival}", mine=mine, rival=rival, factor=1.25)
        for mine, rival in pairs
        if rival != LAUNCHER
    ]
    row = Row(key="8", title=f"{NODES} nodes of a framework are ready", goals=goals, notes=READY_NOTES)
    if problem:
        row.missing = {name: problem for pair in pairs for name in pair}
        return row
    measures: dict[str, Callable[[], float]] = {
        RAY: partial(_ray_start, setting, workers=NODES - 1, head_cpus=1),
        RAY_WITH_HEAD: partial(_ray_start, setting, workers=NODES, head_cpus=0),
        HOROVODRUN: partial(_horovodrun, setting),
        LAUNCHERS: partial(_paddle_launchers, setting, nodes=NODES, ranks=1),
        LAUNCHER: partial(_paddle_launchers, setting, nodes=1, ranks=NODES),
    }
    for name, rivals in RIVALS.items():
        contestants = [Contestant(name=_mine(name), measure=partial(_up, setting, name))]
        contestants += [Contestant(name=rival, measure=measures[rival]) for rival in rivals]
        row.samples.update(alternate(contestants, setting.repeats))
    return row


def _sampling(setting: Setting, problem: str) -> Row:
    goal = Goal(text="≥ 0.9 × the same cluster as bare processes", mine=CONTAINED, rival=BARE, factor=1 / 0.9)
    row = Row(key="9", title="RLlib's samplers", goals=[goal], notes=SAMPLING_NOTES)
    if problem:
        row.missing = dict.fromkeys((CONTAINED, BARE), problem)
        return row
    contestants = [
        Contestant(name=CONTAINED, measure=partial(_sample_in_containers, setting)),
        Contestant(name=BARE, measure=partial(_sample_in_processes, setting)),
    ]
    row.samples = alternate(contestants, setting.repeats)
    return row


def _mine(recipe: str) -> str:
    return f"composesim up --recipe {recipe}"


def _up(setting: Setting, recipe: str) -> float:
    return _seconds_until_ready(partial(_composesim, setting, recipe, NODES, f"ready_{recipe}.py"))


def _horovodrun(setting: Setting) -> float:
    words = [str(PROGRAMS / "horovodrun"), "--gloo", "-np", str(NODES), str(PROGRAMS / "python"), "ready_horovod.py"]
    return _seconds_until_ready(partial(_together, setting, [words]))


def _paddle_launchers(setting: Setting, nodes: int, ranks: int) -> float:
    launch = [str(PROGRAMS / "python"), "-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    meet = ["--master", f"127.0.0.1:{free_port()}", "--host", "127.0.0.1", "--nnodes", str(nodes)] if nodes > 1 else []
    places = [["--rank", str(rank)] if nodes > 1 else [] for rank in range(nodes)]
    commands = [
        [*launch, *meet, *place, "--log_dir", f"paddle-log-{number}", "ready_paddle.py"]
        for number, place in enumerate(places)
    ]
    return _seconds_until_ready(partial(_together, setting, commands))


def _together(setting: Setting, commands: list[list[str]]) -> str:
    """Return the output of commands that are started at once, with the number of threads per process that composesim plans."""
    environment = {**setting.environment, "OMP_NUM_THREADS": str(setting.threads)}
    return run_together(commands, folder=setting.folder, environment=environment).output


def _ray_start(setting: Setting, workers: int, head_cpus: int) -> float:
    with ray_cluster.started(setting, PROGRAMS, workers=workers, head_cpus=head_cpus) as cluster:
        return cluster.seconds


def _sample_in_containers(setting: Setting) -> float:
    return _seconds_for_samples(_composesim(setting, "ray", 2, "sampling.py", "--option", "cpus=1"))


def _sample_in_processes(setting: Setting) -> float:
    with ray_cluster.started(setting, PROGRAMS, workers=2, head_cpus=0) as cluster:
        command = [str(PROGRAMS / "python"), "sampling.py"]
        return _seconds_for_samples(setting.run(command, environment=cluster.environment).output)


def _composesim(setting: Setting, recipe: str, nodes: int, script: str, *options: str) -> str:
    """Return the output of a run of composesim, from start to end."""
    run_name = setting.new_name()
    command = [str(PROGRAMS / "composesim"), "up", "--recipe", recipe, "--nodes", str(nodes), "--engine", "docker"]
    try:
        return setting.run([*command, "--image", "host", "--name", run_name, *options, script]).output
    finally:
        sweep(run_name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)


def _seconds_until_ready(run: Callable[[], str]) -> float:
    began = time.monotonic()
    output = run()
    found = re.search(r'"ready": ([0-9.]+)', output)
    if found is None:
        raise RunFailedError(f"no rank said when it was ready: {output[-1000:]}")
    return float(found[1]) - began  # by the same clock: that of this machine


def _seconds_for_samples(output: str) -> float:
    lines = re.findall(r'\{"step": [0-9]+, "samples_per_s": [0-9.]+\}', output)
    if not lines:
        raise RunFailedError(f"no sampler said how fast it was: {output[-1000:]}")
    return SAMPLES / median(float(json.loads(line)["samples_per_s"]) for line in lines)
