"""Does every rank end well after its training?"""

from __future__ import annotations

import re

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned

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
    if case.verdict != "passed":
        return not_applicable(f"the run did not come to its end: {case.verdict}")
    return passed("every rank ended its script and its process in good order")
