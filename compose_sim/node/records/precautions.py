"""Calls that are right only in the right order or with the right arguments: clipping, loading, declaring tensors equal."""

from __future__ import annotations

from dataclasses import dataclass

from .gradients import Sketch
from .record import Place, Record


@dataclass(frozen=True)
class Clip(Record, observers="clipping"):
    """An optimizer steps with gradients that were clipped."""

    limit: float  # max_norm
    norm: float  # that clipping saw
    scale: float = 1.0  # by which a GradScaler had multiplied them, and by which it divides them only now
    at: Place | None = None  # of clipping


@dataclass(frozen=True)
class ShardScaling(Record, observers="clipping"):
    """Between the last backward pass and the step, this rank multiplied its shards of the gradients by a number."""

    optimizer: int
    nth: int
    factor: float
    ranks: tuple[int, ...] = ()  # that hold the shards of one parameter
    at: Place | None = None


@dataclass(frozen=True)
class NormOfPart(Record, observers="norms_of_parts"):
    """The script takes the norm of this rank's part of a tensor."""

    norm: float
    size: int  # elements of the part
    at: Place | None = None


@dataclass(frozen=True)
class LoadedState(Record, observers="checkpoints"):
    """A state dict is loaded into a module, and some names do not match."""

    names: int  # that the module has
    missing: int  # of them, those that the state dict lacks
    unexpected: tuple[str, ...]  # the first names that the module lacks
    prefix: str = ""  # that makes the difference: with it, or without it, the names would match
    strict: bool = True
    at: Place | None = None


@dataclass(frozen=True)
class LoadedElsewhere(Record, observers="checkpoints"):
    """`torch.load` without `map_location` puts tensors on another GPU than that of the rank."""

    devices: tuple[int, ...]
    current: int
    at: Place | None = None


@dataclass(frozen=True)
class SavedShards(Record, observers="checkpoints"):
    """A rank saves shards of its own, of parameters or of what an optimizer keeps for them."""

    count: int  # of tensors
    name: str  # of the first, in what is saved
    parts: int  # into which a parameter is divided
    at: Place | None = None


@dataclass(frozen=True)
class UnfilledState(Record, observers="checkpoints"):
    """A sharded checkpoint is loaded into a state dict that has nothing for an optimizer's state, which the checkpoint has."""

    name: str  # of the optimizer in the state dict
    saved: int  # entries of its state in the checkpoint
    at: Place | None = None


@dataclass(frozen=True)
class ReplicatedTensor(Record, observers="replicated"):
    """A rank declares that its tensor is the same on all ranks of a device mesh."""

    ranks: tuple[int, ...]
    number: int  # counted per set of ranks
    shape: tuple[int, ...]
    hash: str | None
    is_input: bool = False  # not a parameter
    sums: Sketch = None  # a sketch of it, to tell rounding from a difference
    at: Place | None = None
