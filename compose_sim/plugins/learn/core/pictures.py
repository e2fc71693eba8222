"""Draw for the terminal what the ranks of a run did: the samples they drew, their parameters, their messages, and who waited."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.text import format_count
from compose_sim.node.records.models import OptimizerStep, TensorHashes
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.timings import StepTimes
from compose_sim.plugins.learn.core import samples
from compose_sim.plugins.learn.core.lesson import Picture
from compose_sim.plugins.learn.core.outcome import elements

_WIDTH = 64  # columns of a drawing
_FIRST = 8  # samples whose order is printed
_MAX_EPOCHS, _MAX_RANKS = 3, 8
_WORK = {"data": "d", "forward": "f", "backward": "b", "optimizer": "o"}


def draw(picture: Picture, case: Case, folder: str = "", *, samples_per_epoch: int = 0) -> tuple[str, ...]:
    """Return the lines of a picture; none if the run left nothing to draw. `folder` is left out of paths."""
    if any(not each.has_left for each in case.stalls):
        return tuple(_standings(case, folder))
    if picture == "samples":
        return tuple(_samples(case, samples_per_epoch)) if samples_per_epoch else ()
    drawings = {"parameters": _parameters, "messages": _messages, "timeline": _timeline}
    drawings["collectives"] = _collectives
    return tuple(drawings[picture](case)) if picture in drawings else ()


def _samples(case: Case, size: int) -> Iterator[str]:
    """Draw one column per sample: the rank that trained on it, `#` if several did, `·` if none did; then the first of each rank."""
    epochs = samples.epochs_of(case.observed, size)[:_MAX_EPOCHS]
    numbers = _numbers(case, epochs)
    for number, epoch in enumerate(epochs):
        ranks_of: dict[int, set[int]] = defaultdict(set)
        for rank, rows in epoch.items():
            for row in rows:
                ranks_of[numbers[row]].add(rank)
        columns = min(size, _WIDTH)
        shown = [ranks_of.get(column * size // columns, set()) for column in range(columns)]
        marks = "".join("·" if not by else "#" if len(by) > 1 else f"{min(by) % 10}" for by in shown)
        if number == 0:
            yield f"Who trained on sample 0, 1, 2, … of {size}: a rank, # several ranks, · nobody"
        shared = sum(1 for by in ranks_of.values() if len(by) > 1)
        yield f"epoch {number}  {marks}"
        yield f"  {format_count(shared, 'sample')} by several ranks, {max(0, size - len(ranks_of))} by nobody"
        for rank, rows in [*epoch.items()][:_MAX_RANKS]:
            yield f"  rank {rank} began with: {' '.join(f'{numbers[row]:>3}' for row in rows[:_FIRST])}"


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
