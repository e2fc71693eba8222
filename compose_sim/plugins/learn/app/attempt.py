"""Run a script as an attempt at a lesson, and judge it."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from compose_sim.app.check import check, check_request
from compose_sim.app.listener import Listener, QuietListener
from compose_sim.app.play import play
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.scenarios.scenario import Scenario
from compose_sim.engine.project_files import read_project_file
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.record import read_case, read_events, read_observed
from compose_sim.engine.run_folder.safe_files import write_file
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.app.course_folder import SCRIPT, TEMPLATES, LessonFolder
from compose_sim.plugins.learn.core.lesson import Lesson
from compose_sim.plugins.learn.core.outcome import (
    Evidence,
    Finding,
    Outcome,
    conclude,
    judge_attempt,
    measured_numbers,
    measured_shares,
)
from compose_sim.plugins.learn.core.pictures import draw
from compose_sim.plugins.learn.core.rounds import endings_of

_MEMORY = "1g"  # of each node
LessonEngine = Literal["local", "docker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A judged attempt, and the picture of its run."""

    outcome: Outcome
    picture: tuple[str, ...] = ()
    run: str = ""  # the name of the run; "" if there was none
    was_interrupted: bool = False


def attempt(
    lesson: LessonFolder,
    project: Path,
    *,
    engine: LessonEngine = "local",
    kept: Engine | None = None,
    listener: Listener | None = None,
) -> Attempt:
    """
    Run `project/NAME/script.py` as an attempt at a lesson, and return the outcome.

    The other files of the lesson are replaced by those of the course. On Docker, nodes reach only one another. A script that is missing
    or is not Python is a failed attempt; raises ComposesimError if the run cannot be started for another reason.
    """
    folder = project / lesson.name
    if not (folder / SCRIPT).is_file():
        return _without_run(f"there is no {lesson.name}/{SCRIPT}")
    for name, text in lesson.own_files.items():
        if _content(folder / name) != text.encode():
            write_file(folder / name, text)
    if wrong := _syntax_error(folder / SCRIPT, f"{lesson.name}/{SCRIPT}"):
        return _without_run(wrong)
    solutions = {os.path.realpath(each) for each in (lesson.path.parent, TEMPLATES / "course" / "lessons")}
    session = Session(replace(_request(lesson, project, engine), hidden=tuple(sorted(solutions))), engine=kept)
    token = secrets.token_hex(8)  # without it, a script could print the numbers that the course's program reports
    session.add_environment(COMPOSESIM_LESSON=token)
    report = _run(lesson.lesson, session, listener or QuietListener())
    case = read_case(session.folder.path, report)
    evidence = Evidence(
        report=report,
        observed=case.observed,
        folder=str(project),
        measured=measured_numbers(case.logs, token),
        shares=measured_shares(case.logs, token),
    )
    if lesson.lesson.picture == "rounds":
        left = session.folder.path
        rounds = {each.generation: read_observed(left, generation=each.generation) for each in report.rounds}
        evidence = replace(evidence, rounds=rounds, endings=endings_of(read_events(left)))
    return Attempt(
        outcome=judge_attempt(lesson.lesson, evidence),
        picture=draw(lesson.lesson, case, evidence),
        run=session.name,
        was_interrupted=session.was_interrupted,
    )


def _run(lesson: Lesson, session: Session, listener: Listener) -> Any:
    if lesson.steps:
        scenario = Scenario(steps=lesson.steps, expect=lesson.required.expect)
        return play(session, scenario, listener, name=session.name, seed=0)
    if not (lesson.required.checks or lesson.required.explained_by):
        # Faster, and nothing is recorded that a program would measure as the student's memory.
        return session.run(listener)
    return check(session, listener)


def _request(lesson: LessonFolder, project: Path, engine: LessonEngine) -> Request:
    wanted = lesson.lesson
    values: dict[str, Any] = {
        "engine": engine,
        "name": f"{lesson.name}-{secrets.token_hex(2)}",
        "script": f"{lesson.name}/{wanted.program}",
        "nodes": wanted.nodes,
        "nproc_per_node": wanted.ranks_per_node,
        "timeout": wanted.timeout,
        "hang_timeout": wanted.hang_timeout,
        "max_restarts": wanted.max_restarts,
        "gpus": "none",
        "check": {"only": (*wanted.required.explained_by, *wanted.required.checks) or ("hang",)},
        **(_contained() if engine == "docker" else {}),
    }
    request = Request(spec=ClusterSpec.model_validate(values), folder=project, isolates=True)
    return request if wanted.steps else check_request(request)


def _contained() -> dict[str, Any]:
    """Return the settings of nodes that run the script of somebody else; root lends its name to nobody."""
    user = {"user": "nobody"} if os.geteuid() == 0 else {}
    return {"network": "isolated", "memory": _MEMORY, **user}


def _content(path: Path) -> bytes | None:
    try:
        return read_project_file(path, path.parent)
    except (OSError, SpecError):
        return None


def _syntax_error(script: Path, name: str) -> str:
    try:
        compile(read_project_file(script, script.parent), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{name}:{error.lineno}: {error.msg}\n{(error.text or '').rstrip()}"
    except (OSError, SpecError, ValueError, RecursionError, MemoryError) as error:
        return f"{name} is not Python source: {str(error) or type(error).__name__}"
    return ""


def _without_run(why: str) -> Attempt:
    return Attempt(outcome=conclude((Finding(id="run", status="failed", detail=why),), seconds=0.0))
