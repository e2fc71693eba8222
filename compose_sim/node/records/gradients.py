"""Gradients of the first steps of each optimizer, as sketches, which add up over ranks as the gradients do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Optional

from .record import Place, Record

SHARDED = -1  # stands for a model of FSDP2, which has no number
Sketch = Optional[tuple[float, ...]]  # of a tensor; None if there is none, or if it is sharded


class SketchedTensor(NamedTuple):
    """A parameter that is sketched at each step."""

    model: int | None  # the DDP model that holds it
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SketchedTensors(Record, observers="optimizers sketches"):
    """Parameters of an optimizer whose sketches follow, in this order."""

    optimizer: int
    rows: tuple[SketchedTensor, ...]


@dataclass(frozen=True)
class ParameterNames(Record, observers="parameter_names sketches"):
    """Names that parameters of an optimizer have in the modules of the script, if no DDP model holds them."""

    optimizer: int
    names: tuple[tuple[str, str], ...]  # `2 of group 0` and the name


@dataclass(frozen=True)
class DetachedInLoss(Record, observers="collectives gathers"):
    """A loss is computed from gathered copies of a tensor that has a gradient, and none of the copies has one."""

    op: str
    shape: tuple[int, ...]  # of the rank's own part
    at: Place | None = None  # where it was gathered


@dataclass(frozen=True)
class ContrastedSamples(Record, observers="collectives contrastive"):
    """A cross entropy compares samples with those of all ranks, and its targets may be those of another rank."""

    size: int  # of the rank's batch; the scores have as many columns for each rank
    in_order: bool  # whether the gathered features are known to be in the order of the ranks
    own: float  # how far the mean score of the rank's own partners is above that of all, in standard errors
    chosen: float  # the same of those that the targets name
    # Whether these partners are in the halves of each rank's part; else the targets count from 0
    are_halves: bool = False
    at: Place | None = None


@dataclass(frozen=True)
class LossSlope(Record, observers="slopes"):
    """The loss of a step, in which a parameter may have been moved, and how much the gradient says that this changes it."""

    step: int
    loss: float | None  # from which this rank's backward passes began, added up
    parameter: str  # "" if none was moved
    held: int  # the hash of its values
    product: float | None  # of gradient and move
    is_cut: bool = False  # whether the forward pass used values without their gradients, or used autocast
    scaled: float | None = None  # what the script multiplied the gradient of that parameter by before the step
    most_scaled: float | None = None  # the largest such number of all parameters
    began: int = 0  # the hash of what that parameter held at the first step
    choices: int = 0  # a hash of what the forward passes chose by values, such as the expert of a token


@dataclass(frozen=True)
class BoundaryGradient(Record, observers="boundaries"):
    """The gradient of an activation that a stage was given, or with which a stage began a backward pass from one, both as hashes."""

    activation: int
    gradient: int
    is_input: bool
    at: Place | None = None


@dataclass(frozen=True)
class SketchedStep(Record, observers="optimizers sketches"):
    """What one step of an optimizer used and changed."""

    optimizer: int
    nth: int  # of this optimizer, from 1
    own: tuple[Sketch, ...]  # what the rank's backward passes added to each gradient since it was cleared
    used: tuple[Sketch, ...]  # the gradient that the step used
    before: tuple[Sketch, ...]  # the parameter before the step
    after: tuple[Sketch, ...]  # and after it
    backwards: int = 0  # that added to the gradients
    mean_times: float | None = None  # if each backward pass started from a mean over samples, what multiplies it
    sum_times: float | None = None  # the same for a sum
    # What multiplies the loss of one sample or target, if the script or the loss function counts them
    each_times: float | None = None
    in_forward: int = 0  # collectives between the last step and the first backward pass
    in_backward: int = 0  # and from then on to the end of the last backward pass
    passes: tuple[tuple[Sketch, ...], ...] = ()  # what each of several backward passes added to the first parameters
    copy_of: int | None = None  # a DDP model, or SHARDED, with gradients that no optimizer uses,
    copies: int = 0  # and how many parameters of the same shapes, which have none, the optimizer holds instead
    type: str = ""  # of the optimizer
    at: Place | None = None
