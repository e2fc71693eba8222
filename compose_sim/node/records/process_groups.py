"""The process groups that a script makes, and the collectives that it issues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .record import Place, Record, Shape


@dataclass(frozen=True)
class InitProcessGroup(Record, observers="groups horovod paddle"):
    """`init_process_group` is called."""

    init_method: str = "env://"
    given_rank: int | None = None  # as an argument
    given_world_size: int | None = None
    env_rank: int | None = None  # RANK at this moment
    env_world_size: int | None = None
    master_addr: str | None = None  # MASTER_ADDR at this moment
    store_host: str | None = None  # of a store that the script created
    device: int | None = None  # the index of its device_id
    at: Place | None = None


@dataclass(frozen=True)
class ProcessGroup(Record, observers="groups horovod paddle"):
    """`init_process_group` has returned."""

    world_size: int
    backend: str


@dataclass(frozen=True)
class Collective(Record, observers="collectives horovod paddle"):
    """A collective is about to be issued: written before it can block."""

    op: str
    group: tuple[int, ...] = ()  # the ranks of the group
    name: str = ""  # of the group
    shapes: tuple[Shape, ...] = ()  # of the tensors that this rank gives
    peers: tuple[Shape, ...] = ()  # of the tensors that it expects from each rank, if they differ from `shapes`
    sends: tuple[int, ...] = ()  # how much an all_to_all gives each rank of the group,
    receives: tuple[int, ...] = ()  # and expects from it, if the parts are not all equal
    dtype: str | None = None
    root: int | None = None  # the source or destination
    reduce: str | None = None  # the reduction, if it is not SUM
    ranks: str | None = None  # of the group to be made
    values: tuple[float, ...] = ()  # that this rank gives, if they are few; in `check` only
    by_fsdp: bool = False  # whether FSDP issued it; in `check` only
    detaches: bool = False  # whether they require a gradient, and the result has none
    moves: str = ""  # what it is given: "gradient", "parameter", "zeros", or else something else; in `check` only
    through: bool = False  # whether it changes a tensor with a gradient that backward passes on as if unchanged
    at: Place | None = None


@dataclass(frozen=True)
class DdpForward(Record, observers="models"):
    """A DDP model is called, and this call or its backward pass synchronizes the ranks."""

    ddp: int  # the number of the model
    group: tuple[int, ...] = ()
    at: Place | None = None


class LaterInGroup(NamedTuple):
    """The collectives of one group that were too many to be written one by one."""

    ranks: tuple[int, ...]
    name: str
    number: int
    digest: int


@dataclass(frozen=True)
class LaterCollectives(Record, observers="collectives"):
    """The collectives that were too many to be written one by one; written at the end."""

    groups: tuple[LaterInGroup, ...]


@dataclass(frozen=True)
class CollectiveFailed(Record, observers="collectives"):
    """A collective raised."""

    error: str


@dataclass(frozen=True)
class LostResult(Record, observers="lost_results"):
    """The tensor that an all_reduce has changed was freed as the call returned, so nothing can use the result; in `check` only."""

    at: Place | None = None


@dataclass(frozen=True)
class ReducedAgain(Record, observers="reduced_again"):
    """An all_reduce is given counts that hold the result of its last one, and more; in `check` only."""

    at: Place | None = None
    is_whole: bool = True  # whether all are whole numbers, as counts are


@dataclass(frozen=True)
class TakenFromAny(Record, observers="messages"):
    """A message that could come from any rank has arrived; in `check` only."""

    source: int
    shape: tuple[int, ...]
    at: Place | None = None


@dataclass(frozen=True)
class SharedBuffer(Record, observers="collectives messages shared_buffers"):
    """A list for the parts of several ranks holds one tensor several times; in `check` only."""

    op: str  # how the parts are received
    at: Place | None = None


@dataclass(frozen=True)
class UntrackedWait(Record, observers="collectives files messages"):
    """A message, store, lock or sleep: ranks may wait for each other without a collective."""

    how: str  # the call
