"""Did the run end as it should, was its hang understood, and is nothing of it left?"""

from __future__ import annotations

from compose_sim.core.scenarios.expectations import Course, Judged, inconclusive, measured


def exit_code(wanted: int, course: Course) -> Judged:
    """`up` would have ended with this."""
    code = course.report.exit_code
    return measured(f"{code}{'' if code == wanted else _why(course)}", code, good=code == wanted)


def verdict(wanted: str, course: Course) -> Judged:
    """The verdict of the run itself."""
    word = course.report.verdict
    return measured(f"{word}{'' if word == wanted else _why(course)}", word, good=word == wanted)


def hang_diagnosed(rank: int, course: Course) -> Judged:
    """A hang was found, and this rank as the one that it waits for."""
    hangs = [*course.of("hang")]
    cause = course.report.cause
    ranks = [event.rank for event in hangs] + ([cause.rank] if cause and cause.kind == "hang" else [])
    if not ranks:
        return measured("no hang was found", None, good=False)
    told = str(hangs[-1].data.get("message", "")) if hangs else cause.message if cause else ""
    return measured(told.partition("\n")[0], ranks[-1], good=rank in ranks)


def nothing_left(wanted: bool, course: Course) -> Judged:
    """No node, network or process of the run is left; `false` expects that something is."""
    if course.left is None:
        return inconclusive("nobody could look")
    detail = f"left: {', '.join(course.left)}" if course.left else "nothing is left"
    return measured(detail, len(course.left), good=(not course.left) == wanted)


def _why(course: Course) -> str:
    cause = course.report.cause
    return f": {cause.first_line}" if cause else ""
