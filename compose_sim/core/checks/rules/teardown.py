"""Does every rank end well after its training?"""

from __future__ import annotations

import re

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.verdict.root_cause import is_consequence

QUESTION = "Does every rank end well after its training?"

_IN_TEARDOWN = re.compile(r"in destroy_process_group\b|Exception ignored in atexit|in _run_exitfuncs\b")
_FIX = (
    "Call `dist.destroy_process_group()` on every rank as the last thing, after a `dist.barrier()` where ranks end at different times, "
    "and close what runs threads or processes of its own (loaders, loggers, profilers) before it."
)


def judge(case: Case) -> Result:
    """Look at how the run ended, where the training itself had."""
    cause = case.cause or {}
    trained = any((rank.last("end") or {"steps": 0})["steps"] for rank in case.observed)
    told = f"{cause.get('traceback') or ''}"
    if cause.get("kind") == "teardown" or (trained and _IN_TEARDOWN.search(told)):
        rank = cause.get("rank")
        message = str(cause.get("message", "")).splitlines()[0] if cause.get("message") else "it crashed"
        who = f"rank {rank}" if rank is not None else "a rank"
        return warned(
            f"{who} had ended its script when it crashed: {message}",
            fix=_FIX,
            ranks=(rank,) if rank is not None else (),
        )
    raised = [each for each in case.observed.of("raised-after-training") if each.rank == cause.get("rank")]
    # A rank that dies of another one's absence shows nothing of its own end.
    if raised and case.verdict != "passed" and not is_consequence(str(cause.get("message"))):
        message = (str(cause.get("message") or "").splitlines() or ["it raised"])[0]
        file, line = raised[0]["at"]
        return warned(
            f"rank {raised[0].rank} had left its training when it raised {message}",
            fix="Mend it: the training is done by then, and the job is marked as failed. Have a test reach this line with few steps.",
            file=file,
            line=line,
            ranks=(raised[0].rank,),
        )
    if case.verdict != "passed":
        return not_applicable(f"the run did not come to its end: {case.verdict}")
    return passed("every rank ended its script and its process in good order")
