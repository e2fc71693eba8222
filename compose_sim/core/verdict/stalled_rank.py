"""Describe where a stalled rank is, and what torch's flight recorder holds of it, from the `stalled` event of the agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from posixpath import basename
from typing import Any

from compose_sim.core.state.state import RankState

_SIZES_AGREE = ("all_reduce", "broadcast", "reduce")
_PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_LOADER = "/torch/utils/data/dataloader.py"
_SPAWN = "/torch/multiprocessing/spawn.py"
_COLLECTIVES = ("/torch/distributed/", "/paddle/distributed/")
_BACKWARD = (("_engine_run_backward", "/torch/autograd/"), ("backward", "/paddle/base/dygraph/"))
_WRAPPER = "/torch/nn/parallel/distributed.py"
_AT_EXIT = ("/threading.py", "_shutdown")
_AT_END = ("/torch/distributed/distributed_c10d.py", "destroy_process_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCollective:
    """One collective or message that a rank has issued; `number` counts those of the group."""

    op: str
    number: int
    group: str
    ranks: tuple[int, ...] = ()
    sizes: str = ""
    at: tuple[str, int] | None = None

    def describe(self, at: tuple[str, int] | None) -> str:
        """Return `all_reduce #13 (train.py, line 11)`; `at` is the line at which the rank waits, for when its own is unknown."""
        place = self.at or at
        number = "" if _PEERS.fullmatch(self.op) else f" #{self.number}"
        return f"{self.op}{number}" + (f" ({basename(place[0])}, line {place[1]})" if place else "")

    def describe_with_sizes(self) -> str:
        """Return `all_reduce #13 of [[4]] (train.py, line 11)`; a barrier has no size, but some backends send a tensor for it."""
        sizes = "" if self.op == "barrier" or not self.sizes.strip("[]") else f" of {self.sizes}"
        return f"{self.op} #{self.number}{sizes}" + self.describe(None).partition(f"#{self.number}")[2]

    def is_answered_by(self, other: PendingCollective) -> bool:
        """Return whether another rank has issued what belongs to this one."""
        mine, theirs = _PEERS.fullmatch(self.op), _PEERS.fullmatch(other.op)
        if mine and theirs:
            return mine[1] != theirs[1] and {mine[2], mine[3]} == {theirs[2], theirs[3]}
        same_size = self.op not in _SIZES_AGREE or self.sizes == other.sizes
        return (self.op, self.group, self.number) == (other.op, other.group, other.number) and same_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the flight recorder of one rank holds; empty if torch recorded nothing."""

    on_device: bool = False  # collectives run on a GPU
    pending: tuple[PendingCollective, ...] = ()  # the oldest ones
    reached: Mapping[str, int] = field(default_factory=dict)  # the number of the last collective, by group
    recent: tuple[PendingCollective, ...] = ()  # the last ones that were issued


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A line of the user's code, and its text."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def describe(self, folder: str) -> str:
        """Return `train.py, line 41: time.sleep(60)`."""
        file = self.file[len(folder) + 1 :] if folder and self.file.startswith(f"{folder}/") else self.file
        return f"{file}, line {self.line}" + (f": `{self.text}`" if self.text else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A rank that makes no progress, or that has exited."""

    rank: int
    node: str
    since: float = 0.0  # when it last made progress
    has_left: bool = False  # it exited with status 0, and other ranks are still there
    doing: str = ""  # stopped, traced, sleeping, locked, waiting, in the kernel
    waits_in: str = ""  # the collective in which it waits for other ranks
    spot: Spot | None = None
    frames: tuple[tuple[str, int, str], ...] = ()
    threads: tuple[Spot, ...] = ()  # where the other threads are in the user's code
    workers: tuple[tuple[int, str, Spot | None], ...] = ()  # processes that it waits for: pid, what they do, and where
    locked_in_c: bool = False
    steps: int = 0
    script_ended: bool = False
    at_breakpoint: bool = False
    recorded: Recorded = field(default_factory=Recorded)

    @property
    def name(self) -> str:
        """`rank 2 on node-1`."""
        return f"rank {self.rank} on {self.node}"

    @property
    def is_done(self) -> bool:
        """Whether the rank will issue no more collectives: its script has ended, or it destroys the process group."""
        destroys = any(file.endswith(_AT_END[0]) and function == _AT_END[1] for file, _, function in self.frames)
        return self.has_left or self.script_ended or destroys

    @property
    def waits_for_loader(self) -> bool:
        """Whether the rank waits for workers of a data loader."""
        return any(file.endswith(_LOADER) for file, _, _ in self._inner_frames)

    @property
    def spawns(self) -> bool:
        """Whether the rank waits for processes of torch.multiprocessing.spawn."""
        return any(file.endswith(_SPAWN) for file, _, _ in self._inner_frames)

    @property
    def locked_threads(self) -> tuple[Spot, ...]:
        """Where the other threads are, if the rank waits for a thread or a lock."""
        return self.threads if self.doing == "locked" and not self.waits_for_loader else ()

    @property
    def is_deadlocked(self) -> bool:
        """Whether the rank waits for a lock or a queue that nothing in its process can release."""
        idle = self.doing == "locked" and not self.waits_in and not self.waits_for_loader
        return idle and not self.threads and not self.workers

    @property
    def _inner_frames(self) -> tuple[tuple[str, int, str], ...]:
        """The frames called from the user's line."""
        at = next(
            (
                n
                for n, (file, line, _) in enumerate(self.frames)
                if self.spot and (file, line) == (self.spot.file, self.spot.line)
            ),
            len(self.frames),
        )
        return self.frames[:at]

    def stands(self, folder: str) -> str:
        """Return the rank and where it is, as the beginning of a sentence."""
        at = f" at {self.spot.describe(folder)}" if self.spot else ""
        after = f" after step {self.steps}" if self.steps else ""
        if self.doing in ("stopped", "traced"):
            how = "is stopped (SIGSTOP)" if self.doing == "stopped" else "is stopped by a debugger"
            return f"{self.name} {how}{at or after}"
        if self.locked_in_c:
            return f"{self.name} is in C code that holds the GIL{at}"
        if self.workers or self.waits_for_loader or self.spawns:
            whom = "its data loader" if self.waits_for_loader else "a process that it has started"
            return f"{self.name} waits for {whom}{at}{self._of_workers(folder)}"
        if self.locked_threads:
            others = "; ".join(f"its other thread at {spot.describe(folder)}" for spot in self.locked_threads[:3])
            return f"{self.name} waits for a thread or a lock{at}, {others}"
        if self.spot is None and (self.script_ended or any(_is_exit(frame) for frame in self.frames)):
            waits = "waits for a thread to finish" if self.doing == "locked" else "does not exit"
            return f"{self.name} has reached the end of its script and {waits}"
        if self.doing == "sleeping":
            return f"{self.name} sleeps{at}"
        return f"{self.name} is{at}" if at else f"{self.name} makes no progress{after}"

    def _of_workers(self, folder: str) -> str:
        parts = []
        for pid, doing, spot in self.workers[:3]:
            verb = {"stopped": "is stopped (SIGSTOP)", "sleeping": "sleeps"}.get(doing, "is")
            parts.append(f"its worker (pid {pid}) {verb}" + (f" at {spot.describe(folder)}" if spot else ""))
        return f"; {', '.join(parts)}" if parts else ""


def standing_of(rank: RankState) -> Standing:
    """Return where a rank is, from its last `stalled` event, or that it has exited."""
    if rank.stall is None:
        return Standing(rank=rank.rank, node=rank.node, has_left=True, steps=rank.step or 0)
    data = rank.stall
    standing = Standing(
        rank=rank.rank,
        node=rank.node,
        since=rank.stalled_since,
        doing=str(data.get("doing", "")),
        spot=_spot(data.get("place")),
        frames=tuple((str(file), int(line), str(function)) for file, line, function in data.get("frames") or ()),
        threads=tuple(spot for spot in map(_spot, data.get("threads") or ()) if spot),
        workers=tuple(
            (int(each.get("pid", 0)), str(each.get("doing", "")), _spot(each.get("place")))
            for each in data.get("workers") or ()
        ),
        # During interpreter shutdown, no thread can acquire the GIL.
        locked_in_c=bool(data.get("locked_in_c")) and rank.phase != "ended",
        steps=int(data.get("steps") or 0),
        script_ended=rank.phase == "ended",
        at_breakpoint=rank.at_breakpoint,
        recorded=recorded_in(data),
    )
    return _with_wait(standing, str(data.get("waiting_in", "")), in_init=rank.in_init)


def place_of(standing: Standing) -> tuple[str, int] | None:
    """Return the file and line to look at: that of a stuck worker, if there is one."""
    spot = next((spot for _, _, spot in standing.workers if spot), standing.spot)
    return (spot.file, spot.line) if spot else None


def _with_wait(standing: Standing, reported: str, *, in_init: bool) -> Standing:
    if standing.doing in ("stopped", "traced") or standing.locked_in_c:
        return standing  # it does not wait for other ranks, even if it has called a collective
    if standing.is_done and standing.recorded.pending:  # it waits for what it has issued before
        return replace(standing, waits_in=_pending(standing))
    return replace(standing, waits_in=reported or _inferred(standing, in_init=in_init) or _pending(standing))


def _pending(standing: Standing) -> str:
    """Return the collective that a rank waits in although the call has returned: for its result, or to leave."""
    others = standing.doing == "sleeping" or standing.workers or standing.waits_for_loader or standing.locked_threads
    at = (standing.spot.file, standing.spot.line) if standing.spot else None
    return "" if others or not standing.recorded.pending else standing.recorded.pending[0].describe(at)


def _inferred(standing: Standing, *, in_init: bool) -> str:
    """Infer the collective that a rank waits in from its stack, if no observer reported it."""
    at = f" ({basename(standing.spot.file)}, line {standing.spot.line})" if standing.spot else ""
    for file, _, function in reversed(standing._inner_frames):
        if file.endswith(_WRAPPER):
            return f"DDP's {function}{at}"
        if any(folder in file for folder in _COLLECTIVES) and function != "wrapper":
            return f"{function}{at}"
    inner = ((file, function) for file, _, function in standing._inner_frames)
    in_backward = any(function == name and folder in file for file, function in inner for name, folder in _BACKWARD)
    if in_backward and standing.doing == "locked":
        return f"backward{at}"
    return f"init_process_group{at}" if in_init else ""


def _is_exit(frame: tuple[str, int, str]) -> bool:
    file, _, function = frame
    return file.endswith(_AT_EXIT[0]) and function == _AT_EXIT[1]


def _spot(value: Any) -> Spot | None:
    if not (isinstance(value, list | tuple) and len(value) >= 2):
        return None
    file, line, function, text = (*value, "", "")[:4]
    return Spot(file=str(file), line=int(line), function=str(function), text=str(text))


def recorded_in(stall: Mapping[str, Any]) -> Recorded:
    """Return what the `stalled` event of a rank contains."""
    return Recorded(
        on_device=bool(stall.get("on_device")),
        pending=tuple(map(_pending_in, stall.get("pending") or ())),
        reached=stall.get("reached") or {},
        recent=tuple(map(_pending_in, stall.get("recent") or ())),
    )


def may_be_computed(ranks: Mapping[int, Recorded]) -> bool:
    """
    Return whether a GPU may be working: a collective is pending that all of its ranks have issued.

    It has to wait for the kernels before it, however long they take.
    """
    return any(
        recorded.on_device and _is_complete(each, rank, ranks)
        for rank, recorded in ranks.items()
        for each in recorded.pending
    )


def first_difference(ranks: Mapping[int, Recorded]) -> tuple[int, PendingCollective, int, PendingCollective] | None:
    """
    Return two ranks that have issued different collectives in the same place of a group, with these; the earliest ones.

    NCCL does not notice: it may complete the first of them, with wrong values, and hang in a later one.
    """
    known: dict[tuple[str, int], tuple[int, PendingCollective]] = {}
    found: list[tuple[int, PendingCollective, int, PendingCollective]] = []
    for rank, recorded in ranks.items():
        for each in recorded.recent if recorded.on_device else ():
            other, its = known.setdefault((each.group, each.number), (rank, each))
            if not each.is_answered_by(its):
                found.append((other, its, rank, each))
    return min(found, key=lambda pair: pair[1].number, default=None)


def _is_complete(wanted: PendingCollective, rank: int, ranks: Mapping[int, Recorded]) -> bool:
    if _PEERS.fullmatch(wanted.op):
        others = (each for other, recorded in ranks.items() if other != rank for each in recorded.pending)
        return any(wanted.is_answered_by(each) for each in others)
    return bool(wanted.ranks) and all(
        member in ranks and _has_issued(wanted, ranks[member]) for member in wanted.ranks if member != rank
    )


def _has_issued(wanted: PendingCollective, recorded: Recorded) -> bool:
    same = [
        each
        for each in (*recorded.pending, *recorded.recent)
        if (each.group, each.number) == (wanted.group, wanted.number)
    ]
    if same:
        return any(wanted.is_answered_by(each) for each in same)
    return recorded.reached.get(wanted.group, 0) >= wanted.number


def _pending_in(values: Mapping[str, Any]) -> PendingCollective:
    at = values.get("at")
    return PendingCollective(
        op=str(values.get("op") or "collective"),
        number=int(values.get("number") or 0),
        group=str(values.get("group") or ""),
        ranks=tuple(values.get("ranks") or ()),
        sizes=str(values.get("sizes") or ""),
        at=(at[0], at[1]) if at else None,
    )
