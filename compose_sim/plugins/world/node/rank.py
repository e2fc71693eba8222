"""Run the script as one rank of a large world, until its second optimizer step, and note what it did."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.optim.optimizer import register_optimizer_step_post_hook

from ....node.planning import fake_run
from ....node.rank.context import place
from ....node.rank.script_runner import UserProgram
from ....node.shared.frames import describe, is_ours, is_user_code
from . import fake_group, overlay, shares
from .peak_memory import PeakMemory
from .processes import Branches, set_environment
from .traffic import Amount, Key, Traffic

_STEPS = 2  # the first one makes the state of the optimizer and DDP's buckets; the second is like all others
_MOST_LOADERS, _MOST_VALUES = 4, 5
_PROJECT = os.getcwd()  # noqa: PTH109 - the script may change it
_OF_DISPATCH = ("_ops.py", "_compile.py", "_dynamo/", "utils/", "_subclasses/", "_tensor.py")  # in the folder of torch


@dataclass
class RankJob:
    """One process to run: a rank up to its second step, or each rank up to its first batch."""

    rank: int
    world: int
    per_node: int
    program: UserProgram
    output: Path
    fake: bool = True
    all_shares: bool = False  # whether to iterate the samplers as all others, too
    branches: Branches | None = None  # of the ranks that run up to their first batch


@dataclass
class _Recorder:
    """What a rank has done so far."""

    job: RankJob
    traffic: Traffic = field(default_factory=Traffic)
    memory: PeakMemory = field(default_factory=PeakMemory)
    steps: dict[int, int] = field(default_factory=dict)  # by id of the optimizer
    at_first_step: dict[int, dict[Key, Amount]] = field(default_factory=dict)
    loaders: list[dict[str, Any]] = field(default_factory=list)
    known: list[Any] = field(default_factory=list)
    # Lines that asked for a value that a fake tensor does not have.
    values: dict[str, None] = field(default_factory=dict)

    def step(self, optimizer: Any, *_: Any) -> None:
        """Count a step; write the result and end the process after the second one of any optimizer."""
        key = id(optimizer)
        self.steps[key] = self.steps.get(key, 0) + 1
        if self.steps[key] == 1:
            self.at_first_step[key] = dict(self.traffic.counts)
        elif self.steps[key] == _STEPS:
            before = self.at_first_step[key]
            self.finish("stepped", per_step=_rows(self.traffic.since(before)), before=_rows(before))

    def finish(self, outcome: str, **more: Any) -> NoReturn:
        """Write the result, and end the process without the exit handlers of libraries that were given fake tensors."""
        with unset_fake_temporarily():
            groups = {name: list(ranks) for name, ranks in self.traffic.groups.items()}
            result = {
                "rank": self.job.rank,
                "outcome": outcome,
                "fake": self.job.fake,
                "steps": max(self.steps.values(), default=0),
                "once": _rows(self.traffic.once),
                "groups": {**groups, **_own_groups()},
                "meshes": _meshes(),
                "peak": self.memory.peak,
                "values": list(self.values),
                "loaders": self.loaders,
                **more,
            }
        _write(self.job.output, json.dumps(result).encode())
        sys.stderr.flush()
        os._exit(0)


def run(job: RankJob) -> NoReturn:
    """Run a job in this process, which was forked for it."""
    set_environment(job.rank, world=job.world, per_node=job.per_node)
    recorder = _Recorder(job)
    fake_group.install(recorder.traffic, only_samples=job.branches is not None)
    fake_run.write_no_file(torch)
    overlay.install(job.output.parent / f"files-{job.rank}")
    if job.fake:
        fake_run.convert_in_place(torch)
    fake_run.read_data_for_real(torch)
    _follow_loaders(recorder)
    register_optimizer_step_post_hook(recorder.step)
    _step_in_spite_of_scaler()
    try:
        with contextlib.ExitStack() as modes:
            if job.fake:
                modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
                modes.enter_context(fake_run.plain_numbers(torch, _noting(recorder.values)))
            if job.branches is None:
                gc.enable()  # tensors in cycles would count at the peak
                modes.enter_context(recorder.memory)
            else:
                job.branches.watch_environment()
            modes.enter_context(recorder.traffic)
            job.program.run()
        recorder.finish("ended", per_step=_rows(recorder.traffic.counts))
    except SystemExit as leave:
        if leave.code not in (None, 0):
            recorder.finish("raised", error=f"SystemExit: {leave.code}", at=_short(_place_of(leave)))
        recorder.finish("ended", per_step=_rows(recorder.traffic.counts))
    except BaseException as error:  # noqa: BLE001 - what the script raises is the answer
        recorder.finish("raised", error=describe(error), at=_short(_place_of(error)))


def _noting(values: dict[str, None]) -> Callable[[], None]:
    """Return what notes the line of the script that asks for a value, unless a library asks."""

    def note() -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            is_ours(frame.f_code.co_filename) or _is_dispatch(frame.f_code.co_filename)
        ):
            frame = frame.f_back
        if is_user_code(frame.f_code.co_filename) and len(values) < _MOST_VALUES:
            values[_short(f"{frame.f_code.co_filename}:{frame.f_lineno}")] = None

    return note


def _is_dispatch(file: str) -> bool:
    """Return whether a file of torch passes calls on to the operators."""
    folder = f"{Path(torch.__file__).parent}/"
    return file.startswith(folder) and file.removeprefix(folder).startswith(_OF_DISPATCH)


def _place_of(error: BaseException) -> str:
    """Return the last line of the script that an error came through."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_code(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _short(place: str) -> str:
    """Return a place in the project without the project's folder."""
    return place.removeprefix(f"{_PROJECT}/")


def _rows(counts: dict[Key, Amount]) -> list[dict[str, Any]]:
    return [{**key._asdict(), **amount._asdict()} for key, amount in sorted(counts.items())]


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".draft")
    draft.write_bytes(data)
    draft.replace(path)


def _own_groups() -> dict[str, list[int]]:
    """Return the ranks of each group that this rank is in, by name."""
    if not dist.is_initialized():
        return {}
    world: Any = dist.distributed_c10d._world
    own = [*world.pg_map]
    return {group.group_name: dist.get_process_group_ranks(group) for group in own}


def _meshes() -> list[dict[str, Any]]:
    """Return the meshes that the script made, without those that are parts of others."""
    module = sys.modules.get("torch.distributed.device_mesh")
    found: list[dict[str, Any]] = []
    if module is None or not dist.is_initialized():
        return found
    for each in gc.get_objects():
        if type(each) is not module.DeviceMesh:
            continue
        with contextlib.suppress(Exception):  # one whose construction failed
            ranks, own = each.mesh.tolist(), each.get_coordinate()
            if own is None or len(each.mesh.flatten()) < 2:
                continue
            names = each.mesh_dim_names or tuple(map(str, range(each.mesh.ndim)))
            groups = [each.get_group(dimension).group_name for dimension in range(each.mesh.ndim)]
            mesh = {
                "names": list(names),
                "shape": list(each.mesh.shape),
                "own": list(own),
                "groups": groups,
                "ranks": ranks,
            }
            if mesh not in found:
                found.append(mesh)
    return found


def _follow_loaders(recorder: _Recorder) -> None:
    loader: Any = torch.utils.data.DataLoader
    iterate = loader.__iter__

    def iterate_and_note(self: Any) -> Any:
        if all(self is not each for each in recorder.known) and len(recorder.known) < _MOST_LOADERS:
            recorder.known.append(self)
            with unset_fake_temporarily():
                _note_loader(recorder, self)
        return iterate(self)

    loader.__iter__ = iterate_and_note


def _note_loader(recorder: _Recorder, loader: Any) -> None:
    job = recorder.job
    if job.branches is not None:
        job.branches.branch()
        batches = shares.batches_of(loader)
        numbers = array("q", [value for batch in batches for value in (len(batch), *batch)])
        _write(job.output.with_name(f"samples-{job.branches.rank}"), numbers.tobytes())
        os._exit(0)
    at = place(1)
    note: dict[str, Any] = {
        "at": _short(f"{at[0]}:{at[1]}") if at else "",
        "samplers": [type(each).__name__ for each in shares.samplers(loader)],
    }
    recorder.loaders.append(note)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        note["opaque"] = "an IterableDataset draws its samples itself"
        return
    output = job.output.with_suffix(f".loader-{len(recorder.loaders)}")
    child = os.fork()
    if not child:  # iterating must not change what the script's own iteration will draw
        _draw(job, loader, output)
    os.waitpid(child, 0)
    with contextlib.suppress(OSError, ValueError):
        note.update(json.loads(output.read_bytes()))


def _draw(job: RankJob, loader: Any, output: Path) -> NoReturn:
    """Iterate the samplers of a loader in a process of its own, and write what they draw."""
    result: dict[str, Any] = {}
    try:
        length = None
        with contextlib.suppress(Exception):
            length = len(loader.dataset)
        own = shares.holder(loader)
        result["length"] = length
        if own is not None:
            result["share"], result["shares"] = own.rank, own.num_replicas
            if job.all_shares:
                with contextlib.suppress(Exception):  # such as a sampler that cannot be copied
                    result["all"] = shares.summary(shares.all_shares(loader), length)
        elif job.all_shares:
            with contextlib.suppress(Exception):  # such as a sampler that asks nobody for its rank
                result["asked"] = shares.summary(shares.told_shares(loader, job.world), length)
        batches = shares.batches_of(loader)
        result["digest"], result["batches"] = shares.digest(batches), len(batches)
    except Exception as error:  # noqa: BLE001 - the script itself will meet it, or not
        result["opaque"] = f"its sampler cannot be iterated alone ({describe(error)})"
    _write(output, json.dumps(result).encode())
    os._exit(0)


def _step_in_spite_of_scaler() -> None:
    """Let a GradScaler step: without values, it would find every gradient infinite."""
    scaler: Any = torch.amp.GradScaler

    def _maybe_opt_step(_: Any, optimizer: Any, __: Any, *arguments: Any, **options: Any) -> Any:
        return optimizer.step(*arguments, **options)

    scaler._maybe_opt_step = _maybe_opt_step
