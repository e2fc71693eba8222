"""Judge whether every rank makes progress until the end."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.verdict.hang import diagnose

QUESTION = "Does every rank make progress?"


def judge(case: Case) -> Result:
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
