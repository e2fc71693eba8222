"""
Judge whether every rank comes as far as the others, and ends cleanly.

`departure` finds in the script's syntax tree which ranks left a loop in which others wait.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Case, Result, check, failed, not_applicable, passed, ranks_text, warned, where
from compose_sim.core.checks.epochs import Epoch, Loader, calls_by_batch, groups, training_loaders
from compose_sim.core.checks.source import parsed
from compose_sim.core.events.observations import RankObserved
from compose_sim.core.text import format_count
from compose_sim.core.verdict.hang import diagnose
from compose_sim.core.verdict.root_cause import is_consequence
from compose_sim.node.records.data import Join
from compose_sim.node.records.models import LossValue, OptimizerStep
from compose_sim.node.records.process_groups import Collective, DdpForward
from compose_sim.node.records.record import Place
from compose_sim.node.records.script import RaisedAfterTraining, ScriptEnd


@check(
    "hang",
    "Does every rank make progress?",
    may_follow=("collective-mismatch", "uneven-inputs", "rank-confusion", "unused-params", "checkpoint-race"),
)
def hang(case: Case) -> Result:
    """Look at runs that were stopped because nothing moved, or that reached their time limit while nothing moved."""
    standing_still = [each for each in case.stalls if not each.has_left]
    is_whole = len(case.stalls) == case.observed.world_size and not any(each.at_breakpoint for each in case.stalls)
    is_over_time = case.verdict == "timeout" and is_whole
    if standing_still and (case.verdict == "hung" or is_over_time):
        found = diagnose(case.stalls)
        detail = case.cause.message if case.verdict == "hung" and case.cause else found.message
        return failed(detail, fix=found.fix, at=found.place, ranks=(found.rank,))
    if case.verdict == "hung":
        detail = case.cause.message if case.cause else "nothing moved"
        call = "init_parallel_env" if "init_parallel_env" in detail else "init_process_group"
        ranks = () if case.failing_rank is None else (case.failing_rank,)
        return failed(detail, fix=f"Call {call} on every rank.", ranks=ranks)
    if case.verdict == "passed":
        return passed("every rank reached its end")
    return not_applicable(f"the run did not reach its end ({case.verdict})")


_FIX_UNEVEN = (
    "Give every rank equally many batches, with a DistributedSampler or drop_last=True, or train inside `with model.join():`, "
    "which answers for ranks that have none left."
)


_FIX_SKIP = (
    "Decide on all ranks alike: reduce the condition first, as in `dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)`, and skip the "
    "batch on every rank or on none."
)

# What a rank's error contains if the end, or the data, of another rank broke a collective.
_BY_OTHERS = re.compile(
    r"gloo|c10d|[Nn][Cc][Cc][Ll]|closed by peer|reset by peer|[Tt]imed? ?out|preamble|Dist[A-Z]\w{0,60}Error"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How far a rank has come in the training loaders."""

    fetched: int
    synchronized: int
    left: bool  # whether it exhausted the last epoch that it began
    closed: bool  # whether all of it was recorded
    raised: bool  # whether an exception ended the script, maybe between two epochs
    last: tuple[Loader, Epoch]
    epochs: dict[tuple[int, int], Epoch]  # the loader's position and the epoch's number -> epoch


@check("uneven-inputs", "Do all ranks train on equally many batches?", may_follow=("rank-confusion",))
def uneven_inputs(case: Case) -> Result:
    """Compare how far the ranks of a group had come when one of them had no batch left."""
    joins = any(each.enabled for each in case.observed.of(Join))
    broke_off = case.verdict in ("hung", "failed") and not joins
    if broke_off and (skipped := _skipped(case) or _never_used(case)):
        return skipped
    by_group: dict[tuple[int, ...], list[dict[int, Loader]]] = {}
    for by_rank in training_loaders(case):
        for group in groups(case, by_rank):
            by_group.setdefault(group, []).append(by_rank)
    ends = case.observed.of(ScriptEnd)
    raised = {each.rank for each in ends if _raised_by_itself(each)}
    ways = {group: _ways(group, training, raised) for group, training in by_group.items()}
    if not any(len(members) > 1 for members in ways.values()):
        by_hand = _judge_by_hand(case) if broke_off else None
        return by_hand or not_applicable("fewer than two ranks train one model from a DataLoader")
    counts = sorted({way.synchronized for members in ways.values() for way in members.values()})
    if not any(counts):
        return not_applicable("no DDP model is trained on the batches")
    if joins:
        return passed("the training runs inside join(), which answers for ranks without batches")
    for members in ways.values():
        for ended, way in members.items():
            further = [rank for rank, other in members.items() if _is_uneven(case, way, other)]
            if further:
                return _stopped(case, members, ended, further) or _uneven(members, ended, further)
    if any(len({way.synchronized for way in members.values()}) > 1 for members in ways.values()):
        listed = " or ".join(map(str, counts))
        if case.verdict != "passed":
            return not_applicable(f"the run ended ({case.verdict}) when the ranks had trained on {listed} batches")
        return passed(f"ranks trained on {listed} batches, and none had to wait for another")
    which = "ranks" if len(counts) == 1 else "the ranks of each group"
    fetched = {way.fetched for members in ways.values() for way in members.values()}
    if len(fetched) == len(counts) == 1 and max(fetched) > max(counts):
        return passed(
            f"ranks had equally many batches ({max(fetched)}), and reduced gradients after {max(counts)} of them"
        )
    return passed(f"{which} trained on equally many batches ({' and '.join(map(str, counts))})")


def _raised_by_itself(end: ScriptEnd) -> bool:
    return bool(end.raised) and not _BY_OTHERS.search(end.raised or "")


def _ways(group: tuple[int, ...], training: list[dict[int, Loader]], raised: Collection[int]) -> dict[int, _Way]:
    ways = {}
    for rank in group:
        epochs = [
            (position, loader, epoch)
            for position, by_rank in enumerate(training)
            if (loader := by_rank.get(rank)) is not None
            for epoch in loader.epochs.values()
            if epoch.synchronized or epoch.trained or epoch.batches
        ]
        if epochs:
            _, loader, epoch = max(epochs, key=lambda each: each[2].batches[0].index if each[2].batches else -1)
            ways[rank] = _Way(
                fetched=sum(epoch.fetched for _, _, epoch in epochs),
                synchronized=sum(epoch.synchronized for _, _, epoch in epochs),
                left=epoch.exhausted,
                closed=all(epoch.closed for _, _, epoch in epochs),
                raised=rank in raised,
                last=(loader, epoch),
                epochs={(position, epoch.number): epoch for position, _, epoch in epochs},
            )
    return ways


def _is_uneven(case: Case, ended: _Way, other: _Way) -> bool:
    """Return whether a rank had no batch left while the other continued."""
    if not ended.left:
        return False
    if case.verdict == "passed" or (ended.closed and other.closed and not ended.raised):
        return other.synchronized > ended.synchronized
    # The run broke off, so what the other rank did with the last batch may not be recorded. That one rank had come further than
    # another means nothing, unless it was by the batches of one epoch.
    further = other.fetched > ended.fetched and other.synchronized >= ended.synchronized
    return further and any(
        epoch.exhausted and key in other.epochs and epoch.fetched < other.epochs[key].fetched
        for key, epoch in ended.epochs.items()
    )


def _stopped(case: Case, members: dict[int, _Way], ended: int, further: list[int]) -> Result | None:
    """Find ranks that had as many batches as the others in each epoch, and stopped between two."""
    way, other = members[ended], members[further[0]]
    same = all(key in other.epochs and epoch.fetched == other.epochs[key].fetched for key, epoch in way.epochs.items())
    begun = [epoch for key, epoch in other.epochs.items() if key not in way.epochs]
    loader, epoch = way.last
    if not same or not begun:
        return None
    left = [rank for rank, mine in members.items() if mine.epochs.keys() == way.epochs.keys()]
    found = departure(case)
    return failed(
        f"{ranks_text(left)} stopped after epoch {epoch.number} of {loader}, in which each rank had {epoch.fetched} batches, while "
        f"{ranks_text(further)} began epoch {begun[0].number}: ranks decide alone when to stop{f'; {found.text}' if found else ''}",
        fix=FIX_DEPARTURE,
        at=found.at if found else loader.place,
        ranks=left,
    )


def _uneven(members: dict[int, _Way], ended: int, further: list[int]) -> Result:
    loader, epoch = members[ended].last
    other = members[further[0]]
    numbers = f"{members[ended].fetched} batches" if members[ended].fetched != other.fetched else "as many"
    detail = (
        f"rank {ended} had no batch left in epoch {epoch.number} of {loader} after {numbers}, "
        f"while rank {further[0]} continued to batch {other.fetched}"
    )
    length, its = loader.info.length, other.last[0].info.length
    if length != its and length is not None:
        detail += f"; their data sets hold {length} and {its} samples"
    return failed(detail, fix=_FIX_UNEVEN, at=loader.place, ranks=sorted({ended, *further}))


def _skipped(case: Case) -> Result | None:
    """Find a forward pass in training that some ranks of a group left without a backward pass, and went on to the next."""
    for group in groups(case):
        passes = {rank: _passes(case.observed.ranks[rank]) for rank in group if rank in case.observed.ranks}
        for number, together in enumerate(zip(*(mine for mine in passes.values()), strict=False)):
            without = [rank for rank, (_, loss) in zip(passes, together, strict=True) if loss is None]
            if not without or len(without) == len(passes):
                continue
            if any(number + 1 == len(passes[rank]) for rank in without):
                break  # its last pass: it did not go on
            forward, others = passes[without[0]][number][0], [rank for rank in passes if rank not in without]
            return failed(
                f"{ranks_text(without)} left forward pass {number + 1}{where(forward.at)} without a backward pass and went on, "
                f"while {ranks_text(others)} reduced its gradients: ranks decide alone to skip a batch",
                fix=_FIX_SKIP,
                at=forward.at,
                ranks=without,
            )
    return None


def _never_used(case: Case) -> Result | None:
    """Find a batch that some ranks took without calling the model, and went on to the next, while others called it."""
    if any(map(_raised_by_itself, case.observed.of(ScriptEnd))):
        return None
    for by_rank in training_loaders(case):
        for group in groups(case, by_rank):
            uses = {rank: calls_by_batch(case.observed.ranks[rank], by_rank[rank]) for rank in group if rank in by_rank}
            for number, batch in sorted({key for mine in uses.values() for key in mine}):
                called = {rank: mine[number, batch] for rank, mine in uses.items() if (number, batch) in mine}
                without = [rank for rank, at in called.items() if at is None]
                others = {rank: at for rank, at in called.items() if at is not None}
                if without and others:
                    line = skipping_line(case, next(iter(others.values())))
                    return failed(
                        f"{ranks_text(without)} took batch {batch + 1} of epoch {number} from {by_rank[without[0]]} and went on to the "
                        f"next without calling the model{f', by the `continue` in line {line[1]}' if line else ''}, while "
                        f"{ranks_text(others)} trained on it: ranks decide alone to skip a batch",
                        fix=_FIX_SKIP,
                        at=line or next(iter(others.values())),
                        ranks=without,
                    )
    return None


def _passes(rank: RankObserved) -> list[tuple[DdpForward, LossValue | None]]:
    """Return the calls of the rank's DDP models in training, each with the loss of the backward pass before the next call."""
    found: list[tuple[DdpForward, LossValue | None]] = []
    for each in rank.of(DdpForward, LossValue):
        if isinstance(each, DdpForward):
            found.append((each, None))
        elif found:
            found[-1] = found[-1][0], each
    return found


def _judge_by_hand(case: Case) -> Result | None:
    """Without a loader, find ranks that have left the loop while others wait in one more forward or backward pass."""
    for group in groups(case):
        members = [case.observed.ranks[rank] for rank in group if rank in case.observed.ranks]
        if len(members) < 2:
            continue
        counts = {rank.rank: sum(1 for _ in rank.of(DdpForward)) for rank in members}
        least, most = min(counts.values()), max(counts.values())
        ended = [rank for rank in members if counts[rank.rank] == least]
        further = [rank for rank in members if counts[rank.rank] > least]
        if not least or not further or not all(_waits_in_model(rank) for rank in further):
            continue
        known = max(map(_own_collectives, further))
        if all(_has_left(rank, known) for rank in ended) and not _may_be_a_branch(ended, further):
            other = next(rank for rank in further if counts[rank.rank] == most)
            forward, gone = other.last(DdpForward), departure(case)
            return failed(
                f"rank {ended[0].rank} ended after {least} batches, while rank {other.rank} continued to batch {most} "
                f"(counted by calls of the model){f'; {gone.text}' if gone else ''}",
                fix="Give every rank equally many batches, and skip one on every rank or on none: reduce what decides it "
                "(`dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)`). Or train inside `with model.join():`, which answers for ranks "
                "that have none left.",
                at=gone.at if gone else forward.at if forward else None,
                ranks=sorted(counts),
            )
    return None


def _waits_in_model(rank: RankObserved) -> bool:
    return isinstance(rank.last(Collective, DdpForward), DdpForward) and ended_by_others(rank)


def _has_left(rank: RankObserved, known: int) -> bool:
    """Return whether a rank, after its last step, waits in a collective that others have not reached, or has ended."""
    end = rank.last(ScriptEnd)
    if end is not None and not end.raised:
        return True
    waits = isinstance(rank.last(Collective, DdpForward, OptimizerStep), Collective)
    return waits and _own_collectives(rank) > known and ended_by_others(rank)


def _own_collectives(rank: RankObserved) -> int:
    """Return how many collectives the rank's script has issued."""
    return sum(1 for _ in rank.of(Collective))


def ended_by_others(rank: RankObserved) -> bool:
    """Return whether nothing but the absence of others ended the rank."""
    end = rank.last(ScriptEnd)
    return end is None or not end.raised or bool(_BY_OTHERS.search(end.raised))


def _may_be_a_branch(ended: list[RankObserved], further: list[RankObserved]) -> bool:
    """Return whether rank 0 (of each node) may have issued collectives of its own within the loop: then counts mean nothing."""
    if any(rank.local_rank for rank in ended):
        return False
    if any(rank.rank for rank in ended) and not any(rank.local_rank for rank in further):
        return False  # if nodes have one rank, only rank 0 or all ranks take such a branch
    places = [[each.at for each in rank.of(Collective, DdpForward)] for rank in ended]
    return any(at and at[-1] not in at[:-1] for at in places)


_IN_TEARDOWN = re.compile(r"in destroy_process_group\b|Exception ignored in atexit|in _run_exitfuncs\b")


@check(
    "teardown",
    "Does every rank end cleanly after its training?",
    may_follow=("collective-mismatch", "uneven-inputs", "checkpoint-race"),
)
def teardown(case: Case) -> Result:
    """Look at how the run ended, if the training itself had ended."""
    cause, rank = case.cause, case.failing_rank
    message = (cause.first_line if cause else "") or "no message"
    ends = (each.last(ScriptEnd) for each in case.observed)
    trained = any(end is not None and end.steps for end in ends)
    if cause and (cause.kind == "teardown" or (trained and _IN_TEARDOWN.search(cause.traceback or ""))):
        return warned(
            f"{'a rank' if rank is None else f'rank {rank}'} crashed after its script had ended: {message}",
            fix="Call `dist.destroy_process_group()` on every rank at the very end, after a `dist.barrier()` if ranks end at "
            "different times, and first close whatever runs threads or processes (loaders, loggers, profilers).",
            ranks=() if rank is None else (rank,),
        )
    raised = next((each for each in case.observed.of(RaisedAfterTraining) if each.rank == rank), None)
    # If a rank dies because another one is gone, that shows nothing about the rank itself.
    if raised and case.verdict != "passed" and not is_consequence(cause.message if cause else ""):
        return warned(
            f"rank {rank} raised after its training had ended: {message}",
            fix="Fix the error: the training is complete, but the job counts as failed. Reach this line in a test with few steps.",
            at=raised.at,
            ranks=(raised.rank,),
        )
    if case.verdict != "passed":
        return not_applicable(f"the run did not reach its end: {case.verdict}")
    return passed("every rank ended its script and its process cleanly")


FIX_DEPARTURE = (
    "Let all ranks decide alike: reduce or broadcast what decides (`dist.all_reduce(flag)`, `dist.broadcast(flag, src=0)`), then leave "
    "the loop or skip the batch on every rank."
)
_MAX_EXITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Ranks that left a loop, and those that go on."""

    left: tuple[int, ...]
    text: str
    at: Place | None


def departure(case: Case) -> Departure | None:
    """Return how some ranks left the loop in which others wait; None if the sources do not show it."""
    places = {rank.rank: _places(case, rank) for rank in case.observed}
    steps = {rank.rank: sum(1 for _ in rank.of(OptimizerStep)) for rank in case.observed}
    seen = sorted({place for mine in places.values() for place in mine[:1]})
    if all(len(mine) != 1 for mine in places.values()):  # the callers of each waiting line are known too
        seen += sorted({place for mine in places.values() for place in mine[1:]} - set(seen))
    for file, line in seen:
        tree = parsed(case.source_of(file))
        for loop in _loops(tree, line) if tree else ():
            inside = [
                rank for rank, mine in places.items() if any(at[0] == file and _holds(loop, at[1]) for at in mine)
            ]
            left = [rank for rank in places if rank not in inside]
            if inside and left:
                waiting = next((at[1] for rank in inside for at in places[rank] if at[0] == file), line)
                return _departure(file, loop, waiting, left, inside, steps)
    return None


def skipping_line(case: Case, at: Place) -> Place | None:
    """Return the only `continue` that may skip this line in the loop around it."""
    tree = parsed(case.source_of(at[0]))
    loops = _loops(tree, at[1]) if tree else []
    lines = [line for line, word in _exits(loops[-1]) if word == "continue" and line < at[1]] if loops else []
    return (at[0], lines[0]) if len(lines) == 1 else None


def _departure(
    file: str, loop: ast.stmt, line: int, left: Sequence[int], inside: Sequence[int], steps: Mapping[int, int]
) -> Departure | None:
    made, going = {steps[rank] for rank in left}, {steps[rank] for rank in inside}
    if not max(made) or len(made) > 1:
        return None
    exits = sorted(set(_exits(loop))) or sorted(set(_exits(loop, nested=None)))
    named = " or ".join(f"`{word}` in line {at}" for at, word in exits[:_MAX_EXITS])
    verb = "skipped part of" if {word for _, word in exits} == {"continue"} else "left"
    by = f" by the {named}" if named else ""
    text = (
        f"{ranks_text(left)} {verb} the loop of line {loop.lineno}{by}, and made {format_count(made.pop(), 'step')}; "
        f"{ranks_text(inside)} made {max(going)} and wait{'s'[: len(inside) == 1]} in line {line}"
    )
    return Departure(
        left=tuple(sorted(left)), text=text, at=(file, exits[0][0]) if len(exits) == 1 else (file, loop.lineno)
    )


def _places(case: Case, rank: RankObserved) -> list[Place]:
    """Return where a rank stands: its innermost line first. It is empty if the script has ended."""
    standing = next((each for each in case.stalls if each.rank == rank.rank), None)
    if standing is not None and (standing.has_left or standing.script_ended):
        return []
    if standing is not None and standing.frames:
        spot = [(standing.spot.file, standing.spot.line)] if standing.spot else []
        return spot + [(file, line) for file, line, _ in standing.frames]
    end = rank.last(ScriptEnd)
    if end is not None and not end.raised:
        return []
    last = rank.last(Collective, DdpForward, OptimizerStep)
    at = getattr(last, "at", None)
    return [at] if at else []


def _loops(tree: ast.Module, line: int) -> list[ast.stmt]:
    """Return the loops around a line, the outermost first."""
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)) and _holds(node, line)]
    return sorted(found, key=lambda node: node.lineno)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _exits(loop: ast.AST, *, nested: bool | None = False) -> Iterator[tuple[int, str]]:
    """Yield the statements that leave a loop, or skip the rest of one pass; with None, also those of the loops in it."""
    for node in ast.iter_child_nodes(loop):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return):
            yield node.lineno, "return"
        elif isinstance(node, (ast.Break, ast.Continue)) and not nested:
            yield node.lineno, "break" if isinstance(node, ast.Break) else "continue"
        yield from _exits(node, nested=None if nested is None else nested or isinstance(node, (ast.For, ast.While)))
