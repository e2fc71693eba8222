"""Draw for the terminal what the ranks of a run did: their samples, parameters, messages, files and steps, and who waited."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.text import format_count
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.models import OptimizerStep, TensorHashes
from compose_sim.node.records.process_groups import Collective, DdpForward
from compose_sim.node.records.timings import StepTimes
from compose_sim.plugins.learn.core import samples
from compose_sim.plugins.learn.core.lesson import SCRIPT, Lesson, Picture
from compose_sim.plugins.learn.core.outcome import Evidence, Shares, elements
from compose_sim.plugins.learn.core.rounds import TrainingRound, rounds_of

_WIDTH = 64  # columns of a drawing
_FIRST = 8  # samples whose order is printed
_MAX_EPOCHS, _MAX_RANKS, _MAX_FILES = 3, 8, 4
_MAX_STEPS = 60  # columns of a round
_FILE_MARKS = {**dict.fromkeys(("write", "update", "append", "written"), "W"), "rename": "N", "read": "R"}
_WORK = {"data": "d", "forward": "f", "backward": "b", "optimizer": "o"}


def draw(lesson: Lesson, case: Case, evidence: Evidence) -> tuple[str, ...]:
    """Return the lines of the picture of an attempt, at most 78 columns wide; none if the run left nothing to draw."""
    if any(not each.has_left for each in case.stalls):
        return tuple(_standings(case, evidence.folder))
    drawings: Mapping[Picture, Callable[[], Iterator[str]]] = {
        "samples": lambda: _samples(case, lesson.required.samples_per_epoch or 0),
        "parameters": lambda: _parameters(case),
        "messages": lambda: _messages(case),
        "timeline": lambda: _timeline(case),
        "collectives": lambda: _collectives(case),
        "shares": lambda: _shares(case, evidence.shares) if evidence.shares else iter(()),
        "files": lambda: _files(case),
        "rounds": lambda: _rounds(evidence),
        "none": lambda: iter(()),
    }
    return tuple(drawings[lesson.picture]())


def _samples(case: Case, size: int) -> Iterator[str]:
    """Draw one column per sample: the rank that trained on it, `#` if several did, `·` if none did; then the first of each rank."""
    epochs = samples.epochs_of(case.observed, size)[:_MAX_EPOCHS] if size else []
    numbers = _numbers(case, epochs)
    for number, epoch in enumerate(epochs):
        ranks_of: dict[int, set[int]] = defaultdict(set)
        for rank, rows in epoch.items():
            for row in rows:
                ranks_of[numbers[row]].add(rank)
        columns = min(size, _WIDTH)
        shown = [ranks_of.get(column * size // columns, set()) for column in range(columns)]
        marks = "".join(_mark([*by]) for by in shown)
        if number == 0:
            yield f"Who trained on sample 0, 1, 2, … of {size}: a rank, # several ranks, · nobody"
        shared = sum(1 for by in ranks_of.values() if len(by) > 1)
        yield f"epoch {number}  {marks}"
        yield f"  {format_count(shared, 'sample')} by several ranks, {max(0, size - len(ranks_of))} by nobody"
        for rank, rows in [*epoch.items()][:_MAX_RANKS]:
            yield f"  rank {rank} began with: {' '.join(f'{numbers[row]:>3}' for row in rows[:_FIRST])}"


def _mark(takers: Sequence[int]) -> str:
    return "·" if not takers else "#" if len(takers) > 1 else f"{takers[0] % 10}"


def _shares(case: Case, shares: Shares) -> Iterator[str]:
    """Draw one column per thing: the rank that took it, `#` if it was taken more than once; then what each rank took, and its node."""
    takers_of: dict[int, list[int]] = defaultdict(list)
    for rank, taken in shares.by_rank.items():
        for item in taken:
            takers_of[item].append(rank)
    marks = "".join(_mark(takers_of[item]) for item in range(shares.count))
    yield f"Who {shares.what} 0, 1, 2, … of {shares.count}: a rank, # more than once, · nobody"
    yield from (marks[start : start + _WIDTH] for start in range(0, shares.count, _WIDTH))
    yield f"{marks.count('#')} more than once, {marks.count('·')} by nobody"
    nodes = {rank: (observed.node, observed.local_rank) for rank, observed in case.observed.ranks.items()}
    for rank, taken in [*shares.by_rank.items()][:_MAX_RANKS]:
        node, local_rank = nodes.get(rank, ("", 0))
        shown = [*map(str, taken)] if len(taken) <= _FIRST else [*map(str, taken[: _FIRST - 2]), "…", f"{taken[-1]}"]
        yield f"{node}, rank {rank}, local rank {local_rank}: {len(taken):>3}{':' if taken else ''} {' '.join(shown)}".rstrip()


def _numbers(case: Case, epochs: Sequence[samples.Epoch]) -> dict[int, int]:
    """Return a number for each sample: its index if all ranks have the same data set, else one by content."""
    rows = {row for epoch in epochs for each in epoch.values() for row in each}
    indices = samples.indices_of(case.observed)
    return indices if rows <= indices.keys() else {row: number for number, row in enumerate(sorted(rows))}


def _parameters(case: Case) -> Iterator[str]:
    """Draw a line per rank over the steps, which leaves that of rank 0 when the parameters differ."""
    seen: dict[int, dict[int, tuple[Any, ...]]] = {}
    for observed in case.observed:
        hashes = {record.nth: record.hashes for record in observed.of(TensorHashes) if record.optimizer == 0}
        seen[observed.rank] = hashes
    if not any(seen.values()):
        return
    steps = sorted(set.intersection(*(set(hashes) for hashes in seen.values())))[: _WIDTH // 4]
    yield f"{'step':8}{''.join(f'{step:<4}' for step in steps)}"
    for rank, hashes in [*seen.items()][:_MAX_RANKS]:
        same = [hashes[step] == seen[min(seen)][step] for step in steps]
        first = same.index(False) if False in same else len(same)
        yield f"rank {rank:<3}{'━━━━' * first}{'┓' if first < len(same) else ''}"
        if first < len(same):
            rest = "".join("━━━━" if not each else "━┛  " for each in same[first:])
            yield f"{'':8}{'    ' * first}┗{rest[1:]} differs from rank 0 since step {steps[first]}"


def _messages(case: Case) -> Iterator[str]:
    """Draw the messages that the course's program counted: lines `{"from": 0, "to": 1, "messages": 6, "bytes": 24}`."""
    found = []
    for lines in case.logs.values():
        for line in lines:
            try:
                value = json.loads(line) if line.startswith('{"from"') else None
                found.append({key: int(value[key]) for key in ("from", "to", "messages", "bytes")} if value else {})
            except (ValueError, KeyError, TypeError):
                continue
    found = sorted((each for each in found if each), key=lambda each: (each["from"], each["to"]))
    most = max((each["bytes"] for each in found), default=0)
    for each in found[: _WIDTH // 2]:
        bar = "█" * max(1, round(24 * each["bytes"] / most)) if most else ""
        count = format_count(each["messages"], "message")
        yield f"rank {each['from']} ──▶ rank {each['to']}  {bar:24} {count}, {each['bytes']:,} bytes"


def _collectives(case: Case) -> Iterator[str]:
    """Draw the collectives of rank 0 between two optimizer steps, with the elements that they move."""
    of_step: dict[int, list[Collective]] = defaultdict(list)
    step = 0
    for record in (each for rank in case.observed if rank.rank == 0 for each in rank.of(Collective, OptimizerStep)):
        if isinstance(record, OptimizerStep):
            step += 1
        else:
            of_step[step].append(record)
    shown = of_step.get(1) or of_step.get(0) or []
    most = max(map(elements, shown), default=0)
    if most:
        yield "The collectives of one step on rank 0:"
    for record in shown[: _WIDTH // 2] if most else ():
        bar = "█" * max(1, round(24 * elements(record) / most))
        yield f"{record.op:24}{bar:24} {elements(record):,} elements"


def _timeline(case: Case) -> Iterator[str]:
    """Draw a step of each rank: its own work above, and below it the time in collectives."""
    by_rank = {rank.rank: {each.step: each for each in rank.of(StepTimes) if each.work} for rank in case.observed}
    common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
    if not common:
        return
    step = max(common)  # the first ones are not typical
    shown = {rank: steps[step] for rank, steps in by_rank.items()}
    start = min(each.began for each in shown.values())
    spans = [_spans(each, start) for each in shown.values()]
    length = max((end for span in spans for _, _, end in span), default=0.0)
    if length <= 0:
        return
    yield f"Step {step}, {length * 1000:.1f} ms: d data, f forward, b backward, o optimizer; ~ in a collective"
    for rank, of_rank in zip(shown, spans, strict=True):
        rows = {True: [" "] * _WIDTH, False: [" "] * _WIDTH}
        for mark, began, end in of_rank:
            first, last = (min(_WIDTH - 1, int(moment / length * _WIDTH)) for moment in (began, end))
            rows[mark == "~"][first : last + 1] = mark * (last + 1 - first)
        yield f"rank {rank:<3}{''.join(rows[False]).rstrip()}"
        yield f"{'':8}{''.join(rows[True]).rstrip()}"


def _spans(times: StepTimes, start: float) -> list[tuple[str, float, float]]:
    """Return (mark, began, ended) of what a rank did, in seconds since `start`."""
    offset = times.began - start
    own = [(_WORK[kind], began, lasted) for kind, began, lasted in times.work if kind in _WORK]
    marked = [*own, *(("~", wait.began, wait.lasted) for wait in times.waits)]
    return [(mark, offset + began / 1e6, offset + (began + lasted) / 1e6) for mark, began, lasted in marked]


def _standings(case: Case, folder: str) -> Iterator[str]:
    """Draw who waits for whom in a hang, one line per rank."""
    yield "Where the ranks are, when none of them moves any more:"
    for each in case.stalls[:_MAX_RANKS]:
        where = "has left: its script ended" if each.has_left else each.stands(folder).removeprefix(f"{each.name} ")
        yield f"rank {each.rank:<3}{'⏳ ' if each.waits_in else '✋ '}{where}"


def _files(case: Case) -> Iterator[str]:
    """Draw who writes and reads each file of the script, in the order of time, and where all ranks take part in a collective."""
    columns = _order(case)
    if columns:
        yield "Files over time: W written, N renamed to this, R read"
        yield "│ a collective of all ranks; uses between two of them may overlap"
    for path in [*dict.fromkeys(_name(each) for each in columns if each)][:_MAX_FILES]:
        own = [each if each and _name(each) == path else None for each in columns]
        is_private = any(each.to_private if each.to else each.private for each in own if each)
        yield PurePath(path).name + (", in a folder that is not shared" if is_private else "")
        for rank in [*case.observed.ranks][:_MAX_RANKS]:
            row, began = ["│" if each is None else " " for each in columns], 0
            for column, use in enumerate(own):
                if use and use.rank == rank:
                    began = column if use.op != "written" else began
                    row[began : column + 1] = _FILE_MARKS[use.op] * (column + 1 - began)
            yield f"  rank {rank:<3}{''.join(row[:_WIDTH])}".rstrip()


def _order(case: Case) -> list[FileUse | None]:
    """Return the uses of files by the script, in the order of time; None where all ranks take part in a collective."""
    uses: list[tuple[int, FileUse]] = []  # with the collectives that its rank had come to
    for rank in case.observed:
        met = 0
        for each in rank.of(FileUse, Collective, DdpForward):
            if not isinstance(each, FileUse):
                met += set(each.group) == set(case.observed.ranks)
            elif each.op in _FILE_MARKS and (each.at is None or each.at[0].endswith(f"/{SCRIPT}")):
                uses.append((met, each))
    columns: list[FileUse | None] = []
    before = None
    for met, each in sorted(uses, key=lambda use: (use[0], use[1].t)):
        columns += [each] if before in (None, met) else [None, each]
        before = met
    return columns


def _name(use: FileUse) -> str:
    return use.to or use.path


def _rounds(evidence: Evidence) -> Iterator[str]:
    """Draw the optimizer steps of each round, one below the other, so that repeated ones are below those that were lost."""
    rounds = rounds_of(evidence.rounds)[:_MAX_RANKS]
    steps = max((each.end for each in rounds), default=0)
    if not steps:
        return
    scale = -(-steps // _MAX_STEPS)  # steps in a column
    numbers = "".join(f"{step * scale:>10}" for step in range(10, steps // scale + 1, 10))
    yield "Optimizer steps: ━ made, ▒ made again, S then saved, ✘ the round ended early"
    yield f"{'step':9}{numbers}"
    for each in rounds:
        because = evidence.endings.get(each.generation, "")
        yield f"round {each.generation:<3}{_bar(each, scale)}{'✘' if because else ''}"
        if each.saves:
            marks = {max(0, step - 1) // scale for step in each.saves}
            yield f"{'':9}{''.join('S' if column in marks else ' ' for column in range(max(marks) + 1))}"
        notes = [_beginning(each)] if each is not rounds[0] else []
        notes += (
            [f"ended after step {each.end}: {because}"]
            if because and each.steps and each.began is not None
            else [because]
        )
        for note in filter(None, notes):
            yield from textwrap.wrap(note, _WIDTH + 14, initial_indent=" " * 9, subsequent_indent=" " * 9)


def _bar(each: TrainingRound, scale: int) -> str:
    """Draw a column for so many steps; those that an earlier round made are the first."""
    if each.began is None or not each.steps:
        return ""
    first, last = each.began // scale, (each.end - 1) // scale
    new = (each.began + each.again) // scale
    return " " * first + "".join("▒" if column < new else "━" for column in range(first, last + 1))


def _beginning(each: TrainingRound) -> str:
    """Return from which state a round went on, in words."""
    read = (
        f"read {PurePath(each.read).name}, last saved after step {each.saved}" if each.read else "read no earlier file"
    )
    if not each.steps:
        return f"{read}, and made no step"
    if each.began is None:
        return f"{read}; the state from which its {format_count(each.steps, 'step')} went on was not seen"
    if each.is_fresh:
        read += f"{', but' if each.read else ' and'} began with the parameters of the first round"
    elif each.lacks_state:
        read += ", but began without the state of the optimizer"
    return f"{read}: {format_count(each.again, 'step')} made again"
