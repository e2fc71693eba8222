"""Judge whether every rank ends cleanly after the training."""

from __future__ import annotations

import re

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.verdict.root_cause import is_consequence
from compose_sim.node.records.script import RaisedAfterTraining, ScriptEnd

QUESTION = "Does every rank end cleanly after its training?"

_IN_TEARDOWN = re.compile(r"in destroy_process_group\b|Exception ignored in atexit|in _run_exitfuncs\b")
_FIX = (
    "Call `dist.destroy_process_group()` on every rank at the very end, after a `dist.barrier()` if ranks end at different times, "
    "and first close whatever runs threads or processes (loaders, loggers, profilers)."
)
_FIX_RAISED = (
    "Fix the error: the training is complete, but the job counts as failed. Reach this line in a test with few steps."
)


def judge(case: Case) -> Result:
    """Look at how the run ended, if the training itself had ended."""
    cause, rank = case.cause, case.failing_rank
    message = (cause.first_line if cause else "") or "no message"
    ends = (each.last(ScriptEnd) for each in case.observed)
    trained = any(end is not None and end.steps for end in ends)
    if cause and (cause.kind == "teardown" or (trained and _IN_TEARDOWN.search(cause.traceback or ""))):
        return warned(
            f"{'a rank' if rank is None else f'rank {rank}'} crashed after its script had ended: {message}",
            fix=_FIX,
            ranks=() if rank is None else (rank,),
        )
    raised = next((each for each in case.observed.of(RaisedAfterTraining) if each.rank == rank), None)
    # If a rank dies because another one is gone, that shows nothing about the rank itself.
    if raised and case.verdict != "passed" and not is_consequence(cause.message if cause else ""):
        return warned(
            f"rank {rank} raised after its training had ended: {message}",
            fix=_FIX_RAISED,
            at=raised.at,
            ranks=(raised.rank,),
        )
    if case.verdict != "passed":
        return not_applicable(f"the run did not reach its end: {case.verdict}")
    return passed("every rank ended its script and its process cleanly")
