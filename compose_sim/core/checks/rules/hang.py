"""Does every rank go on?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed

QUESTION = "Does every rank go on?"


def judge(case: Case) -> Result:
    """A run that was ended because nothing moved, or that ran into its time limit while nothing did."""
    from compose_sim.core.verdict.hang import diagnose  # which needs the spec, which names checks

    cause = case.cause or {}
    standing_still = [each for each in case.stalls if not each.has_left]
    is_whole = len(case.stalls) == case.observed.world_size and not any(each.at_breakpoint for each in case.stalls)
    is_over_time = case.verdict == "timeout" and is_whole
    if standing_still and (case.verdict == "hung" or is_over_time):
        found = diagnose(case.stalls)
        detail = str(cause["message"]) if case.verdict == "hung" and "message" in cause else found.message
        file, line = found.place or (None, None)
        return failed(detail, fix=found.fix, file=file, line=line, ranks=(found.rank,))
    if case.verdict == "hung":
        rank = cause.get("rank")
        ranks = (rank,) if isinstance(rank, int) else ()
        detail = str(cause.get("message", "nothing moved"))
        call = "init_parallel_env" if "init_parallel_env" in detail else "init_process_group"
        return failed(detail, fix=f"Call {call} on every rank.", ranks=ranks)
    if case.verdict == "passed":
        return passed("every rank came to its end")
    return not_applicable(f"the run did not come to its end ({case.verdict})")
