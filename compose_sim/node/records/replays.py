"""The two runs of `composesim check`: what was recorded, and how the replay at world size 1 compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .record import Place, Record

Precision = Literal["float32", "tf32", "low"]
StopReason = Literal["steps", "room", "unsaved", "closure", "failed"]
Settings = dict[str, float]  # of a parameter group: learning rate, momentum, …


@dataclass(frozen=True)
class RecordedModels(Record, observers="loaders recording replay replaying"):
    """An optimizer is about to make its first recorded step."""

    optimizer: int
    optimizer_types: tuple[str, ...] = ()  # the class and all base classes
    ranks: tuple[int, ...] = ()  # the group size of each DDP model
    batchnorm: tuple[str, ...] = ()  # BatchNorm modules that train by the rank's own batch
    hooks: tuple[str, ...] = ()  # communication hooks
    sharded: bool = False  # whether parameters are spread over ranks: by either FSDP, or over a DeviceMesh
    divided_by_fsdp: bool = False  # whether FSDP divides among all ranks, and smaller groups are those of its mesh
    replicas: tuple[int, ...] = ()  # the ranks that hold copies of what FSDP2 shards to this one
    averaged: bool = False  # whether FSDP takes the mean of the gradients over its ranks
    covered: bool = False  # whether DDP models hold all that the optimizer trains


@dataclass(frozen=True)
class RecordedStep(Record, observers="loaders recording replay replaying"):
    """A step is about to be recorded."""

    step: int
    optimizer: int
    drew: tuple[str, ...] = ()  # the random generators that the training drew from
    fetched: int = 0  # batches so far
    inputs: int = 0  # tensors that models were given, if their optimizer's step follows no batch of a loader


@dataclass(frozen=True)
class EvaluationDraws(Record, observers="loaders recording replay replaying"):
    """An evaluation drew from these random generators, beside its loader: its result need not be the same again."""

    drew: tuple[str, ...]


@dataclass(frozen=True)
class RecordingStopped(Record, observers="loaders recording replay replaying"):
    """Nothing more is recorded."""

    reason: StopReason
    detail: str = ""
    steps: int = 0  # recorded steps


@dataclass(frozen=True)
class ReplayedStep(Record, observers="loaders recording replay replaying"):
    """A recorded step was repeated at world size 1, and the gradients were compared."""

    step: int
    optimizer: int
    tensor: str  # the one that differs most
    finite: bool
    vanished: bool  # whether the gradient is no more than rounding
    difference: float | None  # of that tensor, relative
    cosine: float | None  # between both gradients as a whole
    ratio: float | None  # of their norms, replayed / recorded
    least_cosine: float | None = None  # between those of one tensor
    why_not: str = ""  # why the batches of the ranks could not be joined
    precision: Precision = "float32"
    by_value: bool = False  # whether gradients were clipped by value
    settings: tuple[Settings, ...] = ()  # at world size 1, for each parameter group
    recorded_settings: tuple[Settings, ...] = ()
    divisors: tuple[float, ...] = ()  # numbers that the loss was divided by
    batch_size: int = 0  # the largest of rank 0
    batches_per_step: float = 1.0
    # Parameters of which each rank holds a part; these were put together, or left out if they are not known
    parts: int = 0
    is_part: bool = False  # whether the one that differs most is one of them
    stage: int | None = None  # the only rank that holds it, as a stage of a pipeline
    of_update: bool = False  # whether what the step made of the parameters was compared, not the gradient
    collated: bool = (
        False  # whether batches of ranks had unlike shapes, as by padding, and all samples were collated anew
    )


@dataclass(frozen=True)
class HeldWeights(Record, observers="recording replay replaying"):
    """The hashes of the weights that models used before the first recorded step, and after one of them."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    steps: int = 1  # before `after`
    buffers: tuple[int, ...] = ()  # the hashes of floating-point buffers then, without single numbers
    names: tuple[str, ...] = ()  # of the buffers


@dataclass(frozen=True)
class ReplayedUpdate(Record, observers="recording replay replaying"):
    """The first recorded step was repeated at world size 1, and what it made of the weights was compared."""

    tensor: str  # the one that differs most
    difference: float  # of the whole update, relative
    cosine: float
    ratio: float  # of the norms, replayed / recorded
    settings_are_equal: bool  # of the optimizer: learning rate, …
    left: tuple[tuple[str, int], ...] = ()  # tensors, and how many of their last numbers changed in the replay only


@dataclass(frozen=True)
class ChosenSamples(Record, observers="loaders recording replay replaying"):
    """A loader is iterated in the replay, and one rank would draw the same random numbers for it as all ranks did."""

    loader: int
    passage: int
    data: str  # the type of the data set
    drawn: int  # samples of all ranks together, as far as they were recorded
    shared: int  # of the data set, those that several ranks were given
    others: int  # of those drawn, the ones that the loader would not give at world size 1
    ended: bool  # whether the passage was recorded as a whole
    at: Place | None = None


@dataclass(frozen=True)
class ReplayMisaligned(Record, observers="loaders recording replay replaying"):
    """The script takes other steps at world size 1."""

    step: int
    fetched: int | None = None  # batches so far; None if the parameters have other shapes
    recorded_fetched: int | None = None


@dataclass(frozen=True)
class ReplayFailed(Record, observers="loaders recording replay replaying"):
    """The replay raised."""

    traceback: str


@dataclass(frozen=True)
class ReplayEnd(Record, observers="loaders recording replay replaying"):
    """The replay is over."""

    why: str
    steps: int
    have_own: bool = False  # whether ranks may each have some parameters of their own, in the shape that one rank has
    other_batches: int = 0  # different ones of ranks for a step, if one rank made another than these together
