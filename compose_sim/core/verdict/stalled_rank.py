"""Where does one rank stand, in words? Made from what its node's agent told of it when it stood still (the event `stalled`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from posixpath import basename
from typing import Any

from compose_sim.core.state.state import RankState

_LOADER = "/torch/utils/data/dataloader.py"
_COLLECTIVES = ("/torch/distributed/", "/paddle/distributed/")
_BACKWARD = (("_engine_run_backward", "/torch/autograd/"), ("backward", "/paddle/base/dygraph/"))
_WRAPPER = "/torch/nn/parallel/distributed.py"
_AT_EXIT = ("/threading.py", "_shutdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A line of the person's code, and what stands on it."""

    file: str
    line: int
    function: str = ""
    text: str = ""

    def told(self, folder: str) -> str:
        """`train.py, line 41: time.sleep(60)`."""
        file = self.file[len(folder) + 1 :] if folder and self.file.startswith(f"{folder}/") else self.file
        return f"{file}, line {self.line}" + (f": `{self.text}`" if self.text else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One rank that does not move, or that has left."""

    rank: int
    node: str
    since: float = 0.0  # when it last moved
    has_left: bool = False  # it ended well, and others are still there
    doing: str = ""  # stopped, traced, sleeping, locked, waiting, in the kernel
    waits_in: str = ""  # the collective that it waits for others in
    spot: Spot | None = None
    frames: tuple[tuple[str, int, str], ...] = ()
    threads: tuple[Spot, ...] = ()  # where its other threads stand in the person's code
    workers: tuple[tuple[int, str, Spot | None], ...] = ()  # pid, what it does, where: of processes that it waits for
    locked_in_c: bool = False
    steps: int = 0
    script_ended: bool = False
    at_breakpoint: bool = False

    @property
    def name(self) -> str:
        """`rank 2 on node-1`."""
        return f"rank {self.rank} on {self.node}"

    @property
    def waits_for_loader(self) -> bool:
        """Whether it waits for the workers of a data loader."""
        return any(file.endswith(_LOADER) for file, _, _ in self._inner_frames)

    @property
    def locked_threads(self) -> tuple[Spot, ...]:
        """Where other threads of it stand, if it waits for a thread."""
        return self.threads if self.doing == "locked" and not self.waits_for_loader else ()

    @property
    def _inner_frames(self) -> tuple[tuple[str, int, str], ...]:
        """Those below the person's line."""
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
        """The rank and where it stands, as the beginning of a sentence."""
        at = f" at {self.spot.told(folder)}" if self.spot else ""
        after = f" after step {self.steps}" if self.steps else ""
        if self.doing in ("stopped", "traced"):
            how = "is stopped (SIGSTOP)" if self.doing == "stopped" else "is held by a debugger"
            return f"{self.name} {how}{at or after}"
        if self.locked_in_c:
            return f"{self.name} is in C code that holds the interpreter's lock (GIL){at}"
        if self.workers or self.waits_for_loader:
            whom = "its data loader" if self.waits_for_loader else "a process that it started"
            return f"{self.name} waits for {whom}{at}{self._of_workers(folder)}"
        if self.locked_threads:
            others = "; ".join(f"its other thread at {spot.told(folder)}" for spot in self.locked_threads[:3])
            return f"{self.name} waits for a thread or a lock{at}, {others}"
        if self.spot is None and (self.script_ended or any(_is_exit(frame) for frame in self.frames)):
            return f"{self.name} has come to the end of its script and waits for a thread to end"
        if self.doing == "sleeping":
            return f"{self.name} sleeps{at}"
        return f"{self.name} stands{at}" if at else f"{self.name} does not move{after}"

    def _of_workers(self, folder: str) -> str:
        parts = []
        for pid, doing, spot in self.workers[:3]:
            verb = {"stopped": "is stopped (SIGSTOP)", "sleeping": "sleeps"}.get(doing, "stands")
            parts.append(f"its worker (pid {pid}) {verb}" + (f" at {spot.told(folder)}" if spot else ""))
        return f"; {', '.join(parts)}" if parts else ""


def standing_of(rank: RankState) -> Standing:
    """The standing of a rank from its last `stalled` event, or as one that has left."""
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
        locked_in_c=bool(data.get("locked_in_c")),
        steps=int(data.get("steps") or 0),
        script_ended=rank.phase == "ended",
        at_breakpoint=rank.at_breakpoint,
    )
    return _with_wait(standing, str(data.get("waiting_in", "")), in_init=rank.in_init)


def place_of(standing: Standing) -> tuple[str, int] | None:
    """File and line to look at: of a stuck worker where there is one."""
    spot = next((spot for _, _, spot in standing.workers if spot), standing.spot)
    return (spot.file, spot.line) if spot else None


def _with_wait(standing: Standing, told: str, *, in_init: bool) -> Standing:
    if standing.doing in ("stopped", "traced") or standing.locked_in_c:
        return standing  # it waits for nobody, whatever it called
    return replace(standing, waits_in=told or _inferred(standing, in_init=in_init))


def _inferred(standing: Standing, *, in_init: bool) -> str:
    """What a rank waits in where its observers could not say: told by the frames below the person's line."""
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
