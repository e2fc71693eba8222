"""Models under DistributedDataParallel, and the steps of optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .record import Place, Record


@dataclass(frozen=True)
class DdpModel(Record, observers="models"):
    """A model is wrapped in DistributedDataParallel."""

    ddp: int  # its number on the rank
    ranks: tuple[int, ...]
    names: tuple[str, ...] = ()  # of the first parameters that require a gradient
    sub_group: bool = False  # whether the group is smaller than the world
    find_unused: bool = False
    static_graph: bool = False
    device_ids: tuple[int, ...] = ()
    init_sync: bool = True  # whether its ranks have waited for each other
    at: Place | None = None


@dataclass(frozen=True)
class UnusedParameters(Record, observers="gradients models"):
    """The backward passes since a model's last forward pass left parameters without a gradient."""

    ddp: int
    names: tuple[str, ...]  # the first of them
    count: int
    at: Place | None = None


@dataclass(frozen=True)
class LocalBatchNorm(Record, observers="models"):
    """A DDP model trains with BatchNorm that normalizes over this rank's batch only."""

    ddp: int
    names: tuple[str, ...]  # the first of them
    count: int


@dataclass(frozen=True)
class SteppedModel:
    """How the gradients of one DDP model came about since the optimizer's previous step."""

    ddp: int
    forwards: int  # with gradients enabled
    reduced: int  # of them, those after which backward reduces gradients
    graded: int  # parameters of the wrapper with a gradient
    new: tuple[str, ...] = ()  # parameters with a gradient that the wrapper never had,
    replaced: tuple[str, ...] = ()  # had as another object,
    unfrozen: tuple[str, ...] = ()  # or had without requires_grad


BY_HAND = "UpdateByHand"  # the type of the optimizer that stands for an update by the script itself


@dataclass(frozen=True)
class OptimizerStep(Record, observers="gradients models optimizers paddle"):
    """An optimizer has stepped."""

    step: int  # of all optimizers, from 1
    optimizer: int
    nth: int  # of this optimizer, from 1
    at: Place | None = None
    models: tuple[SteppedModel, ...] = ()  # of sampled steps only, as are the next three
    backwards: int = 0  # backward passes since the previous step
    retained: int = 0  # of them, those that kept their graph
    rates: tuple[float, ...] = ()  # the learning rate of each group of parameters; of sampled steps only
    type: str = ""
    within: int = 0  # backward passes of the closure that the step itself called; of sampled steps only
    left_out: tuple[str, ...] = ()  # parameters with gradients, in place of others that the optimizer still holds


class TensorRow(NamedTuple):
    """A tensor by which ranks are compared."""

    kind: str  # parameter, optimizer state, buffer; sharded: ranks hold different parts
    model: int | None  # the DDP model that holds it
    name: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class TensorTable(Record, observers="models optimizers states"):
    """The tensors of an optimizer are hashed for the first time, or differ from those before."""

    optimizer: int
    table: int  # the number of this list
    rows: tuple[TensorRow, ...]


@dataclass(frozen=True)
class PlainTensors(Record, observers="plain_tensors"):
    """Tensors that modules of a DDP model keep as plain attributes, before one of its forward passes; in `check` only."""

    model: int
    names: tuple[str, ...]  # with the shape
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class TensorHashes(Record, observers="models optimizers states"):
    """The tensors of an optimizer before a step that is sampled, and at the end of the script."""

    optimizer: int
    nth: int  # steps of this optimizer so far
    table: int
    hashes: tuple[str | None, ...]  # one for each row of the table
    final: bool = False  # at the end of the script


@dataclass(frozen=True)
class WeightsBeforeWrapping(Record, observers="evaluations sketches"):
    """The parameters and buffers of a model, before DistributedDataParallel makes those of all ranks equal to those of the first."""

    ddp: int
    rows: tuple[TensorRow, ...]
    hashes: tuple[str | None, ...]


@dataclass(frozen=True)
class WeightsBeforeSharding(Record, observers="evaluations"):
    """Parameters that `fully_shard` divided among ranks, if the rank's part of them is still the same at the first step."""

    ranks: tuple[int, ...]  # of the mesh
    names: tuple[str, ...]
    hashes: tuple[str | None, ...]  # of the whole tensors, before
    loaded: bool  # whether the script had loaded a state dict into a module with some of them
    replicated: bool  # whether some ranks of the mesh hold the same part, as in HSDP
    at: Place | None = None


@dataclass(frozen=True)
class EvaluatedModel(Record, observers="evaluations"):
    """A model is called in evaluation mode, or without being trained, for the first time since the last optimizer step."""

    type: str
    steps: int  # optimizer steps so far
    rows: tuple[TensorRow, ...]
    hashes: tuple[str | None, ...]
    wrapped: bool = False  # whether a DistributedDataParallel model holds it
    held: bool = True  # whether an optimizer holds its first weight
    loaded: bool = False  # whether the script has loaded a state dict into it
    inputs: str | None = None  # the hash of the first tensor that it is given
    at: Place | None = None


@dataclass(frozen=True)
class RunningStatistics(Record, observers="running_statistics"):
    """A mean that an object of the script's own keeps, with a spread and a count, while it trains."""

    type: str
    number: int  # of those of the rank
    size: int
    mean: tuple[float, ...]  # the first few numbers
    at: Place | None = None


@dataclass(frozen=True)
class KeptTensors(Record, observers="kept_tensors"):
    """Tensors that the only object of a class of the script's own keeps, in a script without an optimizer of torch; in `check` only."""

    type: str
    steps: int  # optimizer steps so far
    names: tuple[str, ...]
    sizes: tuple[int, ...]  # elements of each
    hashes: tuple[str, ...]
    parameters: tuple[int, ...] = ()  # elements of each parameter that is trained, while it is
    loaded: Place | None = None  # after a load: where, and only those tensors that have come from it


@dataclass(frozen=True)
class SentModel(Record, observers="sent_models"):
    """A rank begins to send the parameters of a model to others, or to receive them; in `check` only."""

    type: str
    is_source: bool
    names: tuple[str, ...]  # of its buffers
    hashes: tuple[str | None, ...]
    at: Place | None = None


@dataclass(frozen=True)
class ScheduleMade(Record, observers="schedules"):
    """A schedule of the learning rate, when the script has ended."""

    type: str
    ends: int  # after so many of its steps it stays as it is
    steps: int  # that it made
    at: Place | None = None


@dataclass(frozen=True)
class SpreadTaken(Record, observers="running_statistics"):
    """The variance of all numbers of a tensor or of one of its first columns was taken, or their standard deviation."""

    is_root: bool  # whether it is the deviation
    value: float
    mean: float


@dataclass(frozen=True)
class RepeatedPass(Record, observers="repeats"):
    """A forward pass was repeated with the same inputs and random numbers."""

    type: str  # of the model
    number: int  # of its forward passes
    equal: bool  # bit for bit
    difference: float = 0.0  # the largest, relative to the largest value


@dataclass(frozen=True)
class LossValue(Record, observers="losses"):
    """A backward pass starts from a single number."""

    value: float
