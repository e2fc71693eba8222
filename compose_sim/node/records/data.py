"""What a rank loads, and what it feeds to the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .record import Place, Record

Phase = Literal["begun", "trained", "exhausted", "closed"]


@dataclass(frozen=True)
class Sampling:
    """What the samplers of a loader report about themselves; None if they report nothing."""

    num_replicas: int | None = None
    rank: int | None = None
    shuffle: bool | None = None
    drop_last: bool | None = None
    seed: int | None = None
    replacement: bool | None = None
    random: bool = False  # whether one has a generator


@dataclass(frozen=True)
class LoaderInfo(Record, observers="loaders"):
    """A DataLoader is iterated for the first time."""

    loader: int  # its number on the rank
    data: str  # the type of the data set
    made: Place | None = None
    at: Place | None = None  # where it is iterated
    length: int | None = None  # samples in the data set
    iterable: bool = False
    batch_size: int | None = None
    drop_last: bool = False
    threshold: int | None = None  # if only some indices are kept: those whose hash is below this
    samplers: tuple[str, ...] = ()  # types, from the outermost to the innermost
    sampling: Sampling = field(default_factory=Sampling)
    fingerprint: int = 0  # equal for data sets with equal data
    # Of a Subset: the fingerprint of the whole data set, a hash of the indices, and the lowest of the hashes of each
    subset: tuple[int, ...] = ()
    # Dicts that number names: the attribute, a hash of the names, one of the dict
    codes: tuple[tuple[str, int, int], ...] = ()
    # In `check`, if all columns of its data have a mean of 0 and a deviation of 1: the sum of the third powers
    scaled: float | None = None
    set_epoch: bool = False  # whether a sampler has this method
    data_set_epoch: bool = False  # whether the data set has it
    data_shuffles: bool = True  # False if the data set has `shuffle = False`


@dataclass(frozen=True)
class EpochProgress(Record, observers="loaders"):
    """An iteration over a loader begins, is trained on for the first time, is exhausted, or is closed."""

    loader: int
    epoch: int
    phase: Phase
    batches: int = 0
    trained: bool = False
    exhausted: bool = False
    forwards: int = 0  # calls of DDP models to train
    synchronized: int = 0  # of them, those whose gradients are reduced
    drawn: int = 0  # indices
    order: int | None = None  # a hash of the indices in order
    ascending: bool = False
    marks: tuple[int, ...] | None = None  # at "begun": the epoch numbers that samplers and data set hold

    @property
    def only_read(self) -> bool:
        """Whether the iteration has ended without training, as an evaluation does."""
        return self.phase == "exhausted" and not self.trained


@dataclass(frozen=True)
class Batch(Record, observers="loaders"):
    """A batch is taken from a loader."""

    loader: int
    epoch: int
    batch: int
    indices: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None  # a hash per sample
    shape: int | None = None  # a hash of the samples' shapes: rows compare only if it is equal
    forwards: int = 0  # of the epoch so far
    synchronized: int = 0


@dataclass(frozen=True)
class StreamRead(Record, observers="read_streams"):
    """The first samples that a worker reads from an IterableDataset in the first epoch."""

    loader: int
    worker: int
    workers: int
    rows: tuple[int, ...]  # a hash per sample
    # The number of all samples and a hash of them in any order, if the stream has ended
    whole: tuple[int, int] | None = None
    at: Place | None = None


@dataclass(frozen=True)
class NumberedNames(Record, observers="numbered_names"):
    """A dict of the script that numbers names, such as those of classes or the words of a vocabulary, while it trains."""

    name: str  # of the variable, and of the attribute
    names: int  # a hash of the names
    codes: int  # a hash of the whole dict
    at: Place | None = None


@dataclass(frozen=True)
class LoaderRanks(Record, observers="loaders randomness"):
    """A DDP model of another group of ranks is called with batches of this loader."""

    loader: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class TrainingForward(Record, observers="loaders randomness"):
    """A DDP model has been called to train."""

    model: int
    ranks: tuple[int, ...]
    forward: int  # counted on the rank
    rows: tuple[int, ...] | None = None  # a hash per sample
    state: int = 0  # a hash of torch's generator before the call
    drew: int = 0  # random numbers during the call
    loop: int | None = None  # a hash of the generator when the batch was taken
    loop_drew: int | None = None  # random numbers since then
    loader: int | None = None  # None if no batch was taken from a loader
    epoch: int | None = None
    loads: int = 0  # states of generators that the rank had loaded since its first pass
    at: Place | None = None  # if there is no loader


@dataclass(frozen=True)
class GivenRows(Record, observers="own_batches"):
    """The first model of a script is called to train, without a loader and without DistributedDataParallel; in `check` only."""

    rows: tuple[int, ...]  # a hash per row
    scaled: float | None = None  # as in LoaderInfo; of the tensor that the rows are a part of
    at: Place | None = None


DrawnFrom = tuple[int, int]  # a hash of a generator's state, and how many numbers were drawn from it


@dataclass(frozen=True)
class RandomDraws(Record, observers="loaders randomness"):
    """The samples of a batch have been fetched, in the rank or in a worker."""

    loader: int
    epoch: int
    fetch: int
    size: int = 1  # samples
    worker: int | None = None
    states: dict[str, DrawnFrom] = field(default_factory=dict)  # by generator: those that were drawn from


@dataclass(frozen=True)
class GeneratorDraw(Record, observers="loaded_generators"):
    """The script's own code draws random numbers with a function of torch, in a step that is looked at; in `check` only."""

    steps: int  # optimizer steps so far
    state: str  # a hash of the generator's state before
    loaded: Place | None = None  # where that, or the one that it goes on from, was loaded after the first step
    at: Place | None = None


@dataclass(frozen=True)
class Join(Record, observers="loaders"):
    """`with model.join()` is entered."""

    enabled: bool
    at: Place | None = None
