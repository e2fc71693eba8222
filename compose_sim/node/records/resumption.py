"""What a training run holds at each step, to compare a run that was interrupted and resumed with one that was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .record import Place, Record, Shape

When = Literal["step", "interrupted", "end"]
TensorKind = Literal["parameter", "optimizer state", "buffer", "average", "scaler"]
MoveKind = Literal["optimizer", "scheduler", "scaler", "module", "file", "random", "sampler"]


class HeldTensor(NamedTuple):
    """A tensor, or a number, that training goes on from."""

    kind: TensorKind
    name: str
    shape: Shape = ()
    sharded: bool = False  # whether ranks hold parts of it


class TensorSketch(NamedTuple):
    """A few numbers that stand for a tensor."""

    hash: str
    norm: float
    sums: tuple[float, ...]  # weighted sums of its elements, as in `SketchedStep`


class SeenBatch(NamedTuple):
    """A batch that was taken from a loader, or given to a model whose batches come from no loader."""

    loader: int  # -1 without a loader
    epoch: int
    indices: tuple[int, ...] | None
    rows: tuple[int, ...] | None  # a hash per sample


@dataclass(frozen=True)
class HeldTensors(Record, observers="resume"):
    """The tensors of a training run, before the first step and whenever they are others than before."""

    table: int
    rows: tuple[HeldTensor, ...]


@dataclass(frozen=True)
class HeldState(Record, observers="resume"):
    """An optimizer is about to step, the rank is about to be interrupted, or the script has ended."""

    moment: When
    step: int  # optimizer steps of this process so far
    optimizer: int
    table: int
    sketches: tuple[TensorSketch | None, ...]  # one for each row of the table
    groups: tuple[dict[str, float], ...] = ()  # the settings of each parameter group
    batches: tuple[SeenBatch, ...] = ()  # since the previous step
    backwards: int = 0  # since the previous step
    loss: float | None = None  # of the last backward pass
    random: dict[str, int] | None = None  # generator -> a hash of its state
    at: Place | None = None


@dataclass(frozen=True)
class StateMoved(Record, observers="resume"):
    """State is saved, or loaded into an object of torch."""

    kind_of_state: MoveKind
    loaded: bool  # otherwise saved
    path: str = ""  # of a file
    names: tuple[str, ...] = ()  # the first keys of what is moved
    number: int = -1  # of the optimizer
    step: int = 0  # optimizer steps of this process so far
    backwards: int = 0  # since the last of them
    seconds: float = 0.0
    random: dict[str, int] | None = None  # generator -> a hash of its state, when it is set or a loader is iterated
    at: Place | None = None


@dataclass(frozen=True)
class InterruptedHere(Record, observers="resume"):
    """The rank is about to be sent a signal."""

    signal: str
    step: int
    handled: bool = False  # whether the script has a handler of its own
    workers: int = 0  # child processes, which get the signal first
    at: Place | None = None
