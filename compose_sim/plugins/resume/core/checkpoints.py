"""Find the checkpoints that a run wrote, and choose when another run of the same script is to be interrupted."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.record import Place, Record
from compose_sim.node.records.resumption import HeldTensors, StateMoved
from compose_sim.plugins.resume.core.trajectory import steps_before

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".npy", ".pkl", ".pickle", ".safetensors", ".distcp", ".tar", ".h5")
_NEVER = (".log", ".txt", ".csv", ".jsonl", ".json", ".yaml", ".yml", ".png", ".out", ".tmp.lock")
_WRITES = ("write", "create", "update", "rename", "written")
_AFTER = 3  # steps after a checkpoint, at most, before the interruption


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files that hold the state after some step."""

    step: int
    files: tuple[str, ...]
    ranks: tuple[int, ...]  # that wrote them
    opened: tuple[str, ...] = ()  # the names under which they were written, before they were renamed
    at: Place | None = None
    names: frozenset[str] = frozenset()  # keys of what was saved
    is_amid: bool = False  # whether it was saved amid an accumulation, between a backward pass and the step


@dataclass(slots=True)
class _Found:
    files: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    at: Place | None = None
    is_amid: bool = False


def find_checkpoints(observed: Observed, sizes: Mapping[str, int], *, least: int) -> tuple[Checkpoint, ...]:
    """
    Return the checkpoints by step.

    A file counts if a saver of torch, DCP or safetensors wrote it, if it has the suffix of one, or `least` bytes at the end of the run.
    `sizes` are those of files that are left at the end, by path. What a thread writes for `async_save` holds the state of its call.
    """
    found: defaultdict[int, _Found] = defaultdict(_Found)
    renames = _renames(observed)
    for rank in observed:
        saved: set[str] = {
            each.path for each in rank.of(StateMoved) if each.kind_of_state == "file" and not each.loaded
        }
        for number, (step, each) in enumerate(_steps_of_state(rank)):
            when = _When(rank=rank.rank, number=number, step=step)
            if isinstance(each, FileUse) and each.op in _WRITES:
                path = each.to if each.op == "rename" and each.to else each.path
                path = _renamed(path, when, renames)
                is_state = each.path in saved or path in saved or _is_in(path, saved) or _is_named_so(path)
                if not is_state and not (sizes.get(path, 0) >= least and not path.endswith(_NEVER)):
                    continue
                names: Iterable[str] = ()
            elif isinstance(each, StateMoved) and each.kind_of_state == "file" and not each.loaded and each.path:
                path, names = _renamed(each.path, when, renames), each.names
                found[step].is_amid |= each.backwards > 0
            else:
                continue
            entry = found[step]
            entry.files.add(path)
            entry.opened.add(each.path)
            entry.ranks.add(rank.rank)
            entry.names.update(names)
            entry.at = entry.at or each.at
    return tuple(
        Checkpoint(
            step=step,
            files=tuple(sorted(each.files)),
            ranks=tuple(sorted(each.ranks)),
            opened=tuple(sorted(each.opened)),
            at=each.at,
            names=frozenset(each.names),
            is_amid=each.is_amid,
        )
        for step, each in sorted(found.items())
    )


def _steps_of_state(rank: RankObserved) -> Iterator[tuple[int, Record]]:
    """Yield each record with the steps that came before it, or before the call whose state a thread of torch writes."""
    begun: dict[str, int] = {}  # folder or file -> step of the call
    for step, each in steps_before(rank.records):
        if isinstance(each, StateMoved) and each.at and not each.loaded and each.path:
            begun[each.path] = step
        folders: tuple[str, ...] = ()
        if begun and isinstance(each, (FileUse, StateMoved)) and not each.at:
            folders = (each.path, *map(str, PurePosixPath(each.path).parents))
        yield next((begun[folder] for folder in folders if folder in begun), step), each


def last_named(observed: Observed, checkpoints: Sequence[Checkpoint], read: Iterable[str]) -> int | None:
    """
    Return the step of the last checkpoint that a file names, one of those that the next start `read`.

    It is the one before the last if names come some steps after the state, as when a thread writes that, and one is still to come.
    """
    states = {path for each in checkpoints for path in (*each.files, *each.opened)}
    for path in {*read} - states:
        for rank in observed:
            uses = ((step, each) for step, each in steps_before(rank.records) if isinstance(each, FileUse))
            named = [step for step, each in uses if each.op in _WRITES and path == (each.to or each.path)]
            late = all(step > each.step for step, each in zip(named, checkpoints, strict=False))
            if named and late and len(named) == len(checkpoints) - 1:
                return checkpoints[-2].step
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _When:
    """When a rank did something."""

    rank: int
    number: int  # of its record
    step: int

    def is_before(self, other: _When) -> bool:
        return self.number < other.number if self.rank == other.rank else self.step <= other.step


def _renames(observed: Observed) -> dict[str, list[tuple[_When, str]]]:
    """Return when the files and folders of each name were renamed, and to what."""
    found: defaultdict[str, list[tuple[_When, str]]] = defaultdict(list)
    for rank in observed:
        for number, (step, each) in enumerate(steps_before(rank.records)):
            if isinstance(each, FileUse) and each.op == "rename" and each.to:
                found[each.path].append((_When(rank=rank.rank, number=number, step=step), each.to))
    return found


def _renamed(path: str, when: _When, renames: Mapping[str, list[tuple[_When, str]]]) -> str:
    """Return the name of a file after the next time that it, or a folder that it is in, is renamed."""
    names = [path, *map(str, PurePosixPath(path).parents)] if renames else []
    later = [
        (then.step, then.number, to + path[len(name) :])
        for name in names
        for then, to in renames.get(name, ())
        if when.is_before(then)
    ]
    return min(later)[2] if later else path


def least_size(observed: Observed) -> int:
    """Return the bytes from which a file may hold a rank's parameters: a quarter of what these take."""
    table = observed.first(HeldTensors)
    shapes = [row.shape for row in table.rows if row.kind == "parameter"] if table else []
    return max(512, sum(map(math.prod, shapes)))


def _is_in(path: str, folders: set[str]) -> bool:
    return any(str(folder) in folders for folder in PurePosixPath(path).parents)


def _is_named_so(path: str) -> bool:
    return PurePosixPath(path).suffix in SUFFIXES or ".pt." in path


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """When a run is interrupted: after which step, and the checkpoint that is complete by then."""

    step: int
    checkpoint: Checkpoint | None
    why_not: str = ""  # why there is none

    @property
    def at(self) -> Place | None:
        """The line that saves the checkpoint."""
        return self.checkpoint.at if self.checkpoint else None


def choose_interruption(
    checkpoints: tuple[Checkpoint, ...], steps: int, at_step: int | None = None, epochs: Sequence[int] = ()
) -> Interruption:
    """
    Choose the step, of `steps` that the whole run made.

    One amid an accumulation is best: gradients may be lost. Else a checkpoint is better if an older one exists, whose names come later
    in the alphabet at best: a script may choose the wrong one.
    It is better inside of an epoch after the first one, whose order may depend on state that has changed. `epochs` are those of steps.
    """
    usable = [each for each in checkpoints if 0 < each.step < steps]
    if at_step is not None:
        before = [each for each in usable if each.step <= at_step]
        why = "" if before else f"it saved no checkpoint in the {at_step} steps before the interruption"
        return Interruption(step=min(at_step, steps - 1), checkpoint=before[-1] if before else None, why_not=why)
    if not usable:
        return Interruption(step=max(1, steps // 2), checkpoint=None, why_not=_why_none(checkpoints, steps))
    amid = next((each for each in usable if each.is_amid), None)
    second = usable[1] if len(usable) > 2 and usable[0].files != usable[1].files else usable[0]
    chosen = amid or _unsorted(usable) or _inside_later_epoch(usable, epochs) or second
    chosen = chosen if amid else _not_trivial(usable, chosen)
    later = min((each.step for each in usable if each.step > chosen.step), default=steps)
    after = max(1, min(_AFTER, (later - chosen.step) // 2, steps - chosen.step - 1))
    return Interruption(step=min(chosen.step + after, steps - 1), checkpoint=chosen)


def choose_torn(
    checkpoints: tuple[Checkpoint, ...], steps: int, sizes: Mapping[str, int]
) -> tuple[Checkpoint, str] | None:
    """Return a checkpoint that another one precedes, and the largest of its files, under the name that it is written to."""
    usable = [each for each in checkpoints if 0 < each.step <= steps]
    chosen = usable[1] if len(usable) > 1 else usable[0] if usable else None
    if chosen is None or not chosen.files:
        return None
    largest = max(chosen.files, key=lambda path: sizes.get(path, 0))
    own = [path for path in chosen.opened if path == largest]
    others = [path for path in chosen.opened if path not in chosen.files]
    return chosen, (own or others or [largest])[0]


def _unsorted(usable: list[Checkpoint]) -> Checkpoint | None:
    """Return the first checkpoint whose files come before those of an older one in the alphabet, as `step_10` before `step_9`."""
    seen: set[str] = set()
    for each in usable:
        new = set(each.files) - seen
        if seen and new and max(new) < max(seen) and len(seen) < 100:
            return each
        seen |= new
    return None


def _inside_later_epoch(usable: list[Checkpoint], epochs: Sequence[int]) -> Checkpoint | None:
    """Return the first checkpoint in the middle of an epoch that is not the first one."""
    known = [each for each in usable if each.step < len(epochs)]
    return next((each for each in known if epochs[0] < epochs[each.step - 1] == epochs[each.step]), None)


def _not_trivial(usable: list[Checkpoint], chosen: Checkpoint) -> Checkpoint:
    """Return a checkpoint of step 2 at least, if there is one: after one step, much state still equals that of the start."""
    return chosen if chosen.step > 1 else next((each for each in usable if each.step > 1), chosen)


def _why_none(checkpoints: tuple[Checkpoint, ...], steps: int) -> str:
    if not checkpoints:
        return f"it saved no checkpoint in {steps} steps"
    last = checkpoints[-1]
    when = "before the first step" if last.step == 0 else f"after step {last.step}, the last one"
    return f"it saved only {when} of {steps}"
