"""Run a script as some ranks of a large world, one forked process each, with limits of time and memory.

`world-ranks SETTINGS [-m] SCRIPT [ARGS]`: SETTINGS is a JSON object with the fields of `Settings`. The result is the file
`result.json` in the folder that it names.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import time
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # fake tensors import it: once, before the ranks are forked
import torch.testing._internal.distributed.fake_pg
import torch.utils.data

from ....node.rank.script_runner import UserProgram
from ....node.shared import process
from ....node.shared.regular_files import read_regular
from . import shares
from .processes import Branches, Limit, await_process, fork
from .rank import RankJob
from .rank import run as run_job

_MOST_RESULT = 64 << 20  # bytes
_GRACE_S = 5  # for ending what is running


@dataclass(frozen=True)
class Settings:
    """What to run."""

    world: int
    per_node: int
    ranks: list[int]
    folder: str
    most_seconds: float
    most_bytes: int  # of memory, per rank
    sampler_seconds: float  # for iterating samplers rank by rank


def main(arguments: list[str]) -> int:
    """Run the ranks, and write the result."""
    process.die_with(os.getppid())
    settings = Settings(**json.loads(arguments[0]))
    program = UserProgram.from_arguments(arguments[1:])
    os.dup2(2, 1)
    torch.set_num_threads(1)  # a process with threads must not fork
    gc.disable()  # a collection in a forked process would copy all pages
    gc.freeze()
    deadline = time.monotonic() + settings.most_seconds
    found = [_run_rank(settings, program, rank, deadline) for rank in settings.ranks]
    result = {"ranks": found, "samples": _samples(settings, program, found)}
    (Path(settings.folder) / "result.json").write_text(json.dumps(result))
    return 0


def _run_rank(settings: Settings, program: UserProgram, rank: int, deadline: float) -> dict[str, Any]:
    """Run one rank with fake tensors, or else, if the script needs values, with real ones."""
    first = rank == settings.ranks[0]
    found: dict[str, Any] = {}
    for fake in (True, False):
        job = _job(settings, program, rank, fake=fake, all_shares=first)
        before, found = found, _outcome(job, deadline, settings.most_bytes)
        if found["outcome"] == "stepped":
            if not fake:
                found["why_real"] = f"{before.get('error', before['outcome'])} ({before.get('at', '')})"
            return found
        if not fake and found["outcome"] == "limit":  # real tensors take more of both
            return before
    return found


def _job(settings: Settings, program: UserProgram, rank: int, **more: Any) -> RankJob:
    kind = "fake" if more.get("fake", True) else "real"
    output = Path(settings.folder) / f"{kind}-{rank}.json"
    return RankJob(rank=rank, world=settings.world, per_node=settings.per_node, program=program, output=output, **more)


def _outcome(job: RankJob, deadline: float, most_bytes: int) -> dict[str, Any]:
    """Return what a rank wrote about itself, or why it could not."""
    nothing: dict[str, Any] = {"rank": job.rank, "fake": job.fake}
    try:
        status = await_process(fork(lambda: _run(job)), deadline, most_bytes)
    except Limit as limit:
        return {**nothing, "outcome": "limit", "error": str(limit)}
    try:
        found: dict[str, Any] = json.loads(read_regular(job.output, _MOST_RESULT))
    except (OSError, ValueError):
        return {**nothing, "outcome": "raised", "error": f"the process ended without a result (status {status})"}
    return found


def _run(job: RankJob) -> None:
    try:
        run_job(job)
    except BaseException:  # noqa: BLE001 - of ours: the script's are in the result
        traceback.print_exc()


def _samples(settings: Settings, program: UserProgram, found: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return which samples all ranks of the world read in an epoch of the script's first loader; None if it has none."""
    loaders = [each["loaders"][0] for each in found if each.get("loaders")]
    if not loaders or "opaque" in loaders[0]:
        return None
    fake = found[0]["fake"]
    derived = _derived(settings, found, loaders) or _asked(settings, program, found, loaders, fake=fake)
    return derived or _drawn(settings, program, loaders[0], fake=fake)


def _derived(settings: Settings, found: list[dict[str, Any]], loaders: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the shares that copies of one rank's sampler draw, if the ranks that ran have drawn the same."""
    every = loaders[0].get("all")
    if every is None or len(loaders) < len(found) or any("share" not in each for each in loaders):
        return None
    coordinates = [column for mesh in found[0].get("meshes", []) for column in _coordinates(mesh, settings.world)]
    witnesses = [(each["rank"], loader["share"]) for each, loader in zip(found, loaders)]
    of_ranks = shares.map_of(witnesses, settings.world, every["shares"], coordinates)
    same = all(every["digests"][loader["share"]] == loader.get("digest") for loader in loaders)
    if of_ranks is None or not same:
        return None
    return {**every, "of_ranks": of_ranks, "examined": settings.world, "way": "copies"}


def _asked(
    settings: Settings, program: UserProgram, found: list[dict[str, Any]], loaders: list[dict[str, Any]], *, fake: bool
) -> dict[str, Any] | None:
    """Return what a sampler draws that was told to be each rank, if that is what ranks draw: those that ran, the first and the last."""
    every = loaders[0].get("asked")
    if every is None or len(loaders) < len(found):
        return None
    digests = every["digests"]
    drawn = {each["rank"]: loader.get("digest") for each, loader in zip(found, loaders)}
    for rank, batches in _read_by(settings, program, sorted({0, settings.world - 1} - drawn.keys()), fake=fake).items():
        drawn[rank] = shares.digest(batches)
    if not {0, settings.world - 1} <= drawn.keys() or any(digests[rank] != drew for rank, drew in drawn.items()):
        return None
    return {**every, "of_ranks": list(range(settings.world)), "examined": settings.world, "way": "copies"}


def _coordinates(mesh: dict[str, Any], world: int) -> list[list[int]]:
    """Return for each dimension of a mesh over all ranks the coordinate of each rank."""
    ranks = torch.tensor(mesh["ranks"])
    if ranks.numel() != world:
        return []
    columns = []
    for dimension in range(ranks.ndim):
        shape = [1] * ranks.ndim
        shape[dimension] = -1
        numbers = torch.arange(ranks.shape[dimension]).reshape(shape).expand(ranks.shape)
        column = torch.empty(world, dtype=torch.long)
        column[ranks.flatten()] = numbers.flatten()
        columns.append(column.tolist())
    return columns


def _drawn(settings: Settings, program: UserProgram, loader: dict[str, Any], *, fake: bool) -> dict[str, Any] | None:
    """Let each rank run up to its first batch, as long as there is time, and return what they would read; None if none got there."""
    found = _read_by(settings, program, range(settings.world), fake=fake)
    read = [found[rank] for rank in itertools.takewhile(found.__contains__, range(settings.world))]
    if not read:
        return None
    result = shares.summary(read, loader.get("length"))
    if len(read) < settings.world:
        result["dropped"] = None  # others may read the rest
    return {**result, "of_ranks": list(range(len(read))), "examined": len(read), "way": "ranks"}


def _read_by(
    settings: Settings, program: UserProgram, ranks: Sequence[int], *, fake: bool
) -> dict[int, shares.Batches]:
    """Let ranks run up to their first batch, and return what those that got there in time would read."""
    deadline = time.monotonic() + settings.sampler_seconds
    branches = Branches(ranks, settings.world, settings.per_node, deadline, settings.most_bytes)
    job = _job(settings, program, 0, branches=branches, fake=fake)
    with contextlib.suppress(Limit):
        await_process(fork(lambda: _run(job)), deadline + _GRACE_S, settings.most_bytes)
    found = {rank: _read(job.output.with_name(f"samples-{rank}")) for rank in ranks}
    return {rank: batches for rank, batches in found.items() if batches is not None}


def _read(path: Path) -> shares.Batches | None:
    numbers = array("q")
    try:
        numbers.frombytes(read_regular(path, _MOST_RESULT))
    except (OSError, ValueError):
        return None
    batches, at = [], 0
    while at < len(numbers):
        batches.append(numbers[at + 1 : at + 1 + numbers[at]].tolist())
        at += 1 + numbers[at]
    return batches
