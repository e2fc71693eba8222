"""Find what each round of a run made of its training: the saved state it went on from, its optimizer steps, and its saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import OptimizerStep, TensorHashes, TensorRow, TensorTable
from compose_sim.node.records.process_groups import Collective, DdpForward

_STATE = "optimizer state"
_File = tuple[str, str]  # the node, if each has its own, and the path
_Tensors = dict[TensorRow, str | None]  # with a hash of each


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRound:
    """One round of a run. Its steps are numbered by those that the parameters have had since the first round began."""

    generation: int
    began: int | None  # after this step; None if that was not seen
    steps: int = 0  # of its fastest rank
    again: int = 0  # of them, those that an earlier round had made
    saves: tuple[int, ...] = ()  # the steps after which a file was complete
    read: str = ""  # the file of an earlier round that it read before its first step
    saved: int = 0  # the step after which that file was complete
    is_fresh: bool = False  # whether its parameters were those that the first round began with
    lacks_state: bool = False  # whether its optimizer began without the state that it has later in the run

    @property
    def end(self) -> int:
        """The last step; 0 if it is not known."""
        return 0 if self.began is None else self.began + self.steps


def rounds_of(observed: Mapping[int, Observed]) -> list[TrainingRound]:
    """
    Return what the rounds of these generations did.

    A round went on from the newest file that it read before its first step and that an earlier round had completed, unless its
    parameters are those that the first round began with. A program may train more than once: the first optimizer counts.
    """
    rounds: list[TrainingRound] = []
    saved: dict[_File, int] = {}
    everything = [rank for each in observed.values() for rank in each]
    # What torch.save opens is complete when it returns; of another file only the opening is seen.
    by_torch = {_file(rank, use) for rank in everything for use in rank.of(FileUse) if use.op == "written"}
    has_state = any(row.kind == _STATE for rank in everything for table in rank.of(TensorTable) for row in table.rows)
    first: _Tensors = {}
    for generation, each in observed.items():
        tensors = _before_training(each)
        weights = {row: hashed for row, hashed in tensors.items() if row.kind != _STATE}
        first = first if any(one.steps for one in rounds) else weights
        uses = [(made, _file(rank, use), use) for rank in each for made, use in _uses(rank)]
        reads = {saved[file]: file[1] for made, file, use in uses if use.op == "read" and not made and file in saved}
        is_fresh = weights == first
        began = 0 if not rounds or (is_fresh and first) else max(reads, default=None)
        hidden = {rank.rank for rank in each if began is None or _hides_saves(rank)}
        ends = [
            (use.t, file, (began or 0) + made)
            for made, file, use in uses
            if use.op in ("written", "rename") or (use.op in ("write", "update") and file not in by_torch)
            if use.rank not in hidden
        ]
        steps = max((step.nth for rank in each for step in _own_steps(rank)), default=0)
        before = max((one.end for one in rounds), default=0)
        rounds.append(
            TrainingRound(
                generation=generation,
                began=began,
                steps=steps,
                again=0 if began is None else max(0, min(before, began + steps) - began),
                saves=tuple(sorted({step for _, _, step in ends})),
                read=reads[max(reads)] if reads else "",
                saved=max(reads, default=0),
                is_fresh=is_fresh,
                lacks_state=has_state and bool(tensors) and all(row.kind != _STATE for row in tensors),
            )
        )
        saved |= {file: step for _, file, step in sorted(ends)}
        for file in (file for _, file, use in uses if use.rank in hidden and use.op != "read"):
            saved.pop(file, None)
    return rounds


def endings_of(events: Iterable[Event]) -> dict[int, str]:
    """Return why rounds ended before the script did, by generation."""
    found: dict[int, str] = {}
    for event in events:
        if event.kind == "round" and event.generation and event.data.get("because"):
            found[event.generation - 1] = str(event.data["because"]).partition("\n")[0]
        elif event.kind == "ended" and event.generation is not None and not event.data.get("passed"):
            found[event.generation] = str(event.data.get("reason", "")).partition("\n")[0]
    return found


def _own_steps(rank: RankObserved) -> list[OptimizerStep]:
    """Return the steps of the optimizer that stepped first."""
    steps = [*rank.of(OptimizerStep)]
    return [each for each in steps if each.optimizer == steps[0].optimizer]


def _uses(rank: RankObserved) -> Iterator[tuple[int, FileUse]]:
    """Yield the files that a rank used, with the steps that it had made; none once another optimizer has taken over."""
    made, own = 0, _own_steps(rank)
    for record in rank.of(OptimizerStep, FileUse):
        if isinstance(record, FileUse):
            yield made, record
        elif record.optimizer == own[0].optimizer:
            made = record.nth
        elif made == own[-1].nth:
            return


def _hides_saves(rank: RankObserved) -> bool:
    """Return whether saves may be missing: of the same uses of a file between two collectives, only the first is recorded."""
    has_saved = False
    for record in rank.of(FileUse, OptimizerStep, Collective, DdpForward):
        if isinstance(record, FileUse):
            has_saved = has_saved or record.op != "read"
        elif isinstance(record, OptimizerStep) and has_saved:
            return True
        else:
            has_saved = False
    return False


def _file(rank: RankObserved, use: FileUse) -> _File:
    """Return the file that a use leaves, or reads."""
    is_private = use.to_private if use.to else use.private
    return (rank.node if is_private else "", use.to or use.path)


def _before_training(observed: Observed) -> _Tensors:
    """Return the tensors of rank 0's optimizer before its first step; none if it did not get so far."""
    rank = next(iter(observed), None)
    hashes = rank.first(TensorHashes) if rank else None
    if rank is None or hashes is None or hashes.nth:
        return {}
    tables = (each for each in rank.of(TensorTable) if each.optimizer == hashes.optimizer)
    rows = next((each.rows for each in tables if each.table == hashes.table), ())
    return dict(zip(rows, hashes.hashes, strict=False))
