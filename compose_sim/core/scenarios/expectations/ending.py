"""Judge how the run ended: its exit code, its verdict, its hang, and what it has left."""

from __future__ import annotations

from compose_sim.core.scenarios.expectations import Evaluation, FinishedRun, inconclusive, measured


def exit_code(wanted: int, run: FinishedRun) -> Evaluation:
    """Expect the exit code that `up` would have."""
    code = run.report.exit_code
    return measured(f"{code}{'' if code == wanted else _why(run)}", code, good=code == wanted)


def verdict(wanted: str, run: FinishedRun) -> Evaluation:
    """Expect this verdict of the run itself."""
    word = run.report.verdict
    return measured(f"{word}{'' if word == wanted else _why(run)}", word, good=word == wanted)


def hang_diagnosed(rank: int, run: FinishedRun) -> Evaluation:
    """Expect a hang that this rank is the cause of."""
    hangs = [*run.of("hang")]
    cause = run.report.cause
    ranks = [event.rank for event in hangs] + ([cause.rank] if cause and cause.kind == "hang" else [])
    if not ranks:
        return measured("no hang was found", None, good=False)
    message = str(hangs[-1].data.get("message", "")) if hangs else cause.message if cause else ""
    return measured(message.partition("\n")[0], ranks[-1], good=rank in ranks)


def nothing_left(wanted: bool, run: FinishedRun) -> Evaluation:
    """Expect that no node, network or process of the run is left; `false` expects that something is."""
    if run.left is None:
        return inconclusive("nobody could look")
    detail = f"left: {', '.join(run.left)}" if run.left else "nothing is left"
    return measured(detail, len(run.left), good=(not run.left) == wanted)


def _why(run: FinishedRun) -> str:
    cause = run.report.cause
    return f": {cause.first_line}" if cause else ""
