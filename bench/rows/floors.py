"""Row 20: measure programs that only do what no launcher can avoid, beside what composesim takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, Samples, alternate
from bench.process import RunFailedError, run_together
from bench.rows.training import up
from bench.setting import BENCH, Setting

KEYS = ("20",)
TRAIN, TINY = "train_ddp.py", "tiny_steps.py"
LOCAL, FORKED = "composesim up, local", "floor: import torch once, fork four ranks"
DOCKER, STARTED = "composesim up, docker", "floor: four times docker run of the script"
DOCKER_TINY, STARTED_TINY = f"{DOCKER}, 100 tiny steps", f"{STARTED}, 100 tiny steps"
NODES, MANY = 4, 64
ALL_AT_ONCE = f"floor: import torch in {MANY} processes"
REMOVED = "floor: from the last exit in four containers until docker has removed them and their network"


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    pairs = ((LOCAL, FORKED), (DOCKER, STARTED), (DOCKER_TINY, STARTED_TINY))
    row = Row(
        key="20",
        title="floors: programs that only do what no launcher can avoid",
        goals=[Goal(text="≤ 1.25 × the floor", mine=mine, rival=floor, factor=1.25) for mine, floor in pairs],
        notes=[
            f"`{FORKED.removeprefix('floor: ')}`: bench/scripts/forked_ranks.py. No logs, no events, no agents, no supervisor.",
            "`docker run`: with the mounts of composesim's plan, on one network; `docker wait`, `docker rm -f`, `docker network rm`.",
            f"{MANY} imports: what a rendezvous of {MANY} nodes on Docker waits for, as no container can use those of another.",
        ],
    )
    for script in ("forked_ranks.py", TINY):
        shutil.copy(BENCH / "scripts" / script, setting.folder)
    removed = Samples()
    threads = ("--env", f"OMP_NUM_THREADS={setting.threads}")
    try:
        setting.require_engine()
        contestants = [
            Contestant(name=LOCAL, measure=partial(up, setting, "--engine", "local", *threads)),
            Contestant(name=FORKED, measure=partial(_forked, setting)),
            Contestant(name=DOCKER, measure=partial(up, setting, "--engine", "docker", "--image", "host", *threads)),
            Contestant(name=STARTED, measure=partial(_started, setting, TRAIN, removed)),
            Contestant(
                name=DOCKER_TINY,
                measure=partial(
                    up,
                    setting,
                    "--engine",
                    "docker",
                    "--image",
                    "host",
                    *threads,
                    script=TINY,
                    expect="trained on rank 3",
                ),
            ),
            Contestant(name=STARTED_TINY, measure=partial(_started, setting, TINY, Samples())),
            Contestant(name=ALL_AT_ONCE, measure=partial(_imports, setting), rounds=1),
        ]
        row.samples = {**alternate(contestants, setting.repeats), REMOVED: removed}
    except (NotMeasurableError, RunFailedError) as error:
        row.missing = {goal.mine: str(error) for goal in row.goals}
    yield row


def _forked(setting: Setting) -> float:
    environment = {**setting.environment, "OMP_NUM_THREADS": str(setting.threads)}
    command = [str(setting.python), "forked_ranks.py", str(NODES), TRAIN]
    try:
        return run_together([command], folder=setting.folder, environment=environment, expect='"accuracy"').seconds
    finally:
        shutil.rmtree(setting.folder / "checkpoints", ignore_errors=True)


def _started(setting: Setting, script: str, removed: Samples) -> float:
    """Return the seconds from the first container to the removal of the network; add those of the removal to `removed`."""
    name = setting.new_name()
    plan = _plan(setting, script)
    mounts = [
        word
        for each in plan["mounts"]
        for word in ("--volume", f"{each['source']}:{each['target']}{':ro' if each['read_only'] else ''}")
    ]
    label = ("--label", f"composesim.run={name}")
    starts: list[subprocess.Popen[bytes]] = []
    began = time.monotonic()
    try:
        _docker("network", "create", *label, name)
        for rank in range(NODES):
            variables = {
                "RANK": rank,
                "LOCAL_RANK": 0,
                "WORLD_SIZE": NODES,
                "MASTER_ADDR": f"{name}-0",
                "MASTER_PORT": 29500,
            }
            variables |= {"OMP_NUM_THREADS": setting.threads, "GLOO_SOCKET_IFNAME": "eth0"}
            given = [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
            own = ("--name", f"{name}-{rank}", "--network", name, "--workdir", plan["working_directory"])
            words = ("--detach", *label, *own, *given, *mounts, plan["image"], plan["python"], script)
            starts.append(
                subprocess.Popen(["docker", "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        if any(start.wait() for start in starts):
            raise RunFailedError("a container could not be started")
        names = [f"{name}-{rank}" for rank in range(NODES)]
        codes = _docker("wait", *names).split()
        waited = time.time() - _last_exit(names)
        ended = time.monotonic()
        broken = [each for each, code in zip(names, codes, strict=True) if code != "0"]
        if broken:
            raise RunFailedError(f"the containers exited with {' '.join(codes)}: {_docker('logs', broken[0])[-300:]}")
        _docker("rm", "--force", *names)
        _docker("network", "rm", name)
        seconds = time.monotonic() - began
        removed.seconds.append(waited + time.monotonic() - ended)
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / "checkpoints", ignore_errors=True)
    return seconds


def _last_exit(names: Sequence[str]) -> float:
    """Return when the last process of the containers ended, in Unix seconds: docker notes it before it takes a container apart."""
    moments = _docker("inspect", "--format", "{{.State.FinishedAt}}", *names).split()
    return max(datetime.fromisoformat(each).timestamp() for each in moments)


def _plan(setting: Setting, script: str) -> dict[str, Any]:
    """Return the plan of a run, with the tag of the image that composesim makes from this machine's folders."""
    command = [
        setting.composesim(),
        "plan",
        "--nodes",
        str(NODES),
        "--engine",
        "docker",
        "--image",
        "host",
        "--json",
        script,
    ]
    found: dict[str, Any] = json.loads(setting.run(command).output)
    images = _docker("images", "--format", "{{.Repository}}:{{.Tag}}").split()
    tags = [each for each in images if each.startswith("composesim-host:")]
    if not tags:
        raise NotMeasurableError(
            "the image of this machine's folders does not exist: run `composesim up --engine docker` once"
        )
    return {**found, "image": tags[0]}


def _imports(setting: Setting) -> float:
    command = [str(setting.python), "-c", "import torch, torch.distributed"]
    return run_together([command] * MANY, folder=setting.folder, environment=setting.environment).seconds


def _docker(*arguments: str) -> str:
    answer = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RunFailedError(f"`docker {arguments[0]}` exited with {answer.returncode}: {answer.stderr.strip()}")
    return answer.stdout
