"""Diagnose hangs: when no rank makes progress, find the rank that the others wait for, and where it is, also at a breakpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fault_attribution import active_faults
from compose_sim.core.state.state import ClusterState, Failure, RankState
from compose_sim.core.verdict.stalled_rank import Standing, first_difference, may_be_computed, place_of, standing_of

# Before the first step, ranks may wait for things that are not observed. If all ranks only sleep, they may wake up by themselves.
_PATIENCE_FACTOR = 4
_MAX_RANKS = 16
_FIXES = {
    "stopped": "Find out what stopped the process (SIGSTOP, a debugger, a shell's job control); SIGCONT resumes it.",
    "held": "Release the GIL in the C code (ctypes.CDLL instead of PyDLL, Py_BEGIN_ALLOW_THREADS), or give the call a timeout.",
    "loader": "Add a timeout to what the worker waits for; DataLoader(..., timeout=60) raises if a batch does not arrive.",
    "locks": "Acquire the locks in the same order in every thread, or hold only one at a time.",
    "spawn": "composesim has already started the ranks, as torchrun would: call the function without mp.spawn, or run the script "
    "once per node, with a GPU for each process that it starts: `--launcher env --gpus-per-node K`.",
    "gone": "Make every rank perform the same number of steps: no break, continue or return on a single rank; for uneven data, "
    "`with model.join():` or DistributedSampler(..., drop_last=True).",
    "mismatch": "Call the same collectives in the same order on every rank: move the call out of code that only some ranks execute, "
    "such as `if rank == 0:`.",
    "messages": "Post both directions at once: `dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), "
    "dist.P2POp(dist.irecv, into, peer)])`, then wait for all of them; or let one rank of each pair receive first.",
    "alone": "Make this rank reach the same collective as the others, or add a timeout to what it waits for.",
    "behind": "Make every rank take part in each backward pass and step, or none: what one rank leaves out, its next call pairs with.",
    "all": "Add a timeout to what the ranks wait for, so that it raises an error.",
}


# Each rank waits for what another one will never do, because that one waits too, or has left
_FINAL = ("mismatch", "gone", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause of a hang; `kind` is one of stopped, held, loader, locks, spawn, gone, mismatch, messages, behind, alone, all."""

    kind: str
    message: str
    rank: int
    node: str
    place: tuple[str, int] | None = None
    fix: str = ""


def find_hang(state: ClusterState, plan: Plan, *, now: float) -> Failure | None:
    """Return the hang of the run, with `t` when any rank last made progress; None while any rank does, or still may."""
    live = [rank for rank in state.ranks.values() if _is_live(rank, state)]
    if not live or any(rank.stall is None or rank.at_breakpoint for rank in live):
        return None
    nodes = {rank.node for rank in live}
    if any(fault.rank is None and fault.for_s and nodes & set(fault.nodes) for fault in active_faults(state)):
        return None  # the fault heals by itself, and then the ranks that wait because of it continue
    healed_at = max((fault.healed_at or 0.0 for fault in state.faults.values()), default=0.0)
    # What waits for a rank that has just left may already go on: its agent looks once a second.
    left_at = (rank.exited_at or 0.0 for rank in state.ranks.values() if rank.has_left and is_present(rank, state))
    last_moved = max(state.round_at, healed_at, *left_at, *(rank.stalled_since for rank in live))
    standings = standings_of(state)
    if now - last_moved < plan.stall_s * _patience(standings):
        return None
    if may_be_computed({each.rank: each.recorded for each in standings if not each.has_left}):
        return None
    found = diagnose(standings, folder=plan.working_directory)
    return Failure(
        t=last_moved,
        kind="hang",
        node=found.node,
        rank=found.rank,
        message=found.message + (_own_launch(plan) if found.kind == "spawn" else ""),
        traceback=where_all_stand(standings, folder=plan.working_directory),
        is_final=found.kind in _FINAL,
    )


def _own_launch(plan: Plan) -> str:
    """Return how to run a script that starts its own ranks: it needs only one process per node to begin with."""
    most = max((len(node.ranks) for node in plan.nodes), default=1)
    return f"; a script that starts its own ranks runs with --launcher env --gpus-per-node {most}"


def standings_of(state: ClusterState) -> tuple[Standing, ...]:
    """Return where each stalled rank is, or was when it was stopped, and the ranks that have already exited."""
    standings = [standing_of(rank) for rank in state.ranks.values() if rank.stall is not None or rank.has_left]
    return tuple(sorted(standings, key=lambda standing: standing.rank))


def diagnose(standings: tuple[Standing, ...], *, folder: str = "") -> Diagnosis:
    """Return the cause of a hang of these ranks."""
    left = [each for each in standings if each.has_left]
    live = [each for each in standings if not each.has_left]
    waiting = [each for each in live if each.waits_in]
    elsewhere = [each for each in live if not each.waits_in]
    if waiting and elsewhere:
        first = min(elsewhere, key=lambda each: (_likeliest(each), each.since, each.rank))
        return _of(first, f"{first.stands(folder)}, while {_waits(waiting)}{_as_well(elsewhere, first)}")
    if elsewhere:
        first = min(elsewhere, key=lambda each: (_likeliest(each), each.rank))
        message = f"no rank makes progress: {first.stands(folder)}{_as_well(elsewhere, first)}"
        return _of(first, message, kind="all" if len(live) > 1 and _kind(first) == "alone" else "")
    if left:
        first = left[0]
        after = f" after {first.steps} steps" if first.steps else ""
        return _of(first, f"{first.name} exited with status 0{after}, while {_waits(waiting)}", kind="gone")
    if one_sided := _one_sided(waiting):
        message = f"{_waits(one_sided, it=False)}, and no rank {'receives' if _sends(one_sided[0]) else 'sends'}"
        return _of(one_sided[0], message, kind="messages")
    groups: dict[str, list[Standing]] = {}
    for each in waiting:
        groups.setdefault(each.waits_in, []).append(each)
    if len(groups) == 1:
        behind, count = _behind(waiting), max(each.steps for each in waiting)
        if behind:
            text = f"{behind[0].name} has made {behind[0].steps} steps, other ranks {count}"
            return _of(
                behind[0], f"no rank makes progress: {_waits(waiting, it=False)}, although {text}", kind="behind"
            )
        return _of(waiting[0], f"no rank makes progress: {_waits(waiting, it=False)}", kind="all")
    fewest = min(groups.values(), key=len)
    others = [each for each in waiting if each not in fewest]
    if different := first_difference({each.rank: each.recorded for each in waiting}):
        rank, one, another, its = different
        message = f"rank {rank} issued {one.describe_with_sizes()}, but rank {another} {its.describe_with_sizes()}"
        return _of(
            next(each for each in waiting if each.rank == rank), f"{message}: they wait for each other", kind="mismatch"
        )
    message = f"{_waits(fewest, it=False)}, while {_waits(others, it=False)}: they wait for each other"
    return _of(fewest[0], message, kind="mismatch")


def _behind(waiting: list[Standing]) -> list[Standing]:
    """Return the ranks that have made fewer steps than others, if these are not most of them: they left out a pass or a step."""
    fewest = min(each.steps for each in waiting)
    behind = [each for each in waiting if each.steps == fewest]
    return behind if 2 * len(behind) <= len(waiting) else []


def _one_sided(waiting: list[Standing]) -> list[Standing]:
    """Return the ranks that all wait to send, or all to receive, if at least two do and no rank is on the other side."""
    both = [each for each in waiting if each.waits_in.startswith(("send", "recv"))]
    return both if len(both) > 1 and len(set(map(_sends, both))) == 1 else []


def _sends(standing: Standing) -> bool:
    return standing.waits_in.startswith("send")


def where_all_stand(standings: tuple[Standing, ...], *, folder: str = "") -> str:
    """Return the stacks of all ranks, as the traceback of the cause."""
    blocks = []
    for each in standings[:_MAX_RANKS]:
        frames = [f'  File "{file}", line {line}, in {function}' for file, line, function in reversed(each.frames)]
        waits = f"{each.name} waits in {each.waits_in}" if each.waits_in else each.stands(folder)
        blocks.append("\n".join([waits, *frames]))
    if len(standings) > _MAX_RANKS:
        blocks.append(f"and {len(standings) - _MAX_RANKS} more ranks")
    return "\n".join(blocks)


def is_present(rank: RankState, state: ClusterState) -> bool:
    """Return whether a rank belongs to the current round; ranks of earlier rounds block nothing."""
    return rank.generation is None or rank.generation == state.generation or state.generation is None


def _is_live(rank: RankState, state: ClusterState) -> bool:
    node = state.nodes.get(rank.node)
    return is_present(rank, state) and rank.phase != "exited" and node is not None and not node.is_gone


def _patience(standings: tuple[Standing, ...]) -> int:
    live = [each for each in standings if not each.has_left]
    if all(each.waits_in for each in live) and len({each.waits_in.partition(" (")[0] for each in standings}) > 1:
        return 1  # in different collectives, or while a rank has left: nothing that comes later can help
    if len(_one_sided(live)) == len(live):
        return 1
    if all(each.waits_in.startswith("init_process_group") for each in live):
        return 1  # all ranks of the round are there
    if all(each.spawns for each in live):
        return 1  # the processes that they have started collide: each rank has started all of them
    if any(each.is_deadlocked for each in live) and all(each.waits_in or each.is_deadlocked for each in live):
        return 1
    if any(not (each.steps or each.is_done) for each in live):
        return _PATIENCE_FACTOR
    only_sleeping = all(each.doing == "sleeping" and not each.waits_in and not each.locked_in_c for each in live)
    return _PATIENCE_FACTOR if only_sleeping else 1


def _kind(standing: Standing) -> str:
    if standing.doing in ("stopped", "traced"):
        return "stopped"
    if standing.locked_in_c:
        return "held"
    if standing.workers or standing.waits_for_loader:
        return "loader"
    if standing.locked_threads:
        return "locks"
    return "spawn" if standing.spawns else "alone"


def _likeliest(standing: Standing) -> int:
    """Return the place in the order of likely causes: a rank that cannot continue by itself explains most."""
    return ("stopped", "held", "locks", "loader", "spawn", "alone").index(_kind(standing))


def _of(standing: Standing, message: str, *, kind: str = "") -> Diagnosis:
    kind = kind or _kind(standing)
    place = place_of(standing)
    return Diagnosis(kind=kind, message=message, rank=standing.rank, node=standing.node, place=place, fix=_FIXES[kind])


def _waits(standings: list[Standing], *, it: bool = True) -> str:
    """Return `ranks 0, 1, 3 wait for it in all_reduce #12 (train.py, line 50)`, with one part per collective."""
    groups: dict[str, list[int]] = {}
    for each in standings:
        groups.setdefault(each.waits_in, []).append(each.rank)
    parts = []
    for what, ranks in groups.items():
        who, wait = (f"rank {ranks[0]}", "waits") if len(ranks) == 1 else (f"ranks {_listed(ranks)}", "wait")
        parts.append(f"{who} {wait}{' for it' if it else ''} in {what}")
    return " and ".join(parts)


def _as_well(standings: list[Standing], first: Standing) -> str:
    others = [each.rank for each in standings if each is not first]
    if not others:
        return ""
    same = all(place_of(each) == place_of(first) for each in standings)
    who = f"rank {_listed(others)} is" if len(others) == 1 else f"ranks {_listed(others)} are"
    return f" ({who} {'there too' if same else 'not in a collective either'})"


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """A rank that has stopped at `breakpoint()`; `phase` is waiting, attached or released."""

    node: str
    file: str
    line: int
    socket: str  # the name in the `debug/` folder of the run
    phase: str


def breakpoint_after(before: Breakpoint | None, event: Event, *, rank: int) -> Breakpoint | None:
    """Return the breakpoint of a rank after one more event; None once the process has exited or was started again."""
    if event.rank != rank:
        return before
    if event.kind in ("rank-started", "rank-exited"):
        return None
    if event.kind != "breakpoint":
        return before
    data = event.data
    phase = str(data.get("phase", "waiting"))
    if phase == "released":
        return replace(before, phase=phase) if before else None
    return Breakpoint(
        node=event.node or "",
        file=str(data.get("file", "")),
        line=int(data.get("line", 0)),
        socket=str(data.get("socket", "")),
        phase=phase,
    )
