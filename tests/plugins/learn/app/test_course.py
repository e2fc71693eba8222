"""The course that ships: solutions pass, delivered scripts fail for the reason that they name, and pages are short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from pydantic import BaseModel

from compose_sim.app.check import check, check_request
from compose_sim.app.listener import QuietListener
from compose_sim.app.request import Request
from compose_sim.app.session import Session
from compose_sim.core.glossary import find_topic, parse_glossary
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.app.attempt import attempt
from compose_sim.plugins.learn.app.author import MAX_WORDS, begin_course, prove, staged
from compose_sim.plugins.learn.app.course_folder import ACCEPT, PAGE, REJECT, SCRIPT, SOLUTION, TEMPLATES, read_course
from compose_sim.plugins.learn.core.lesson import Course, Lesson
from tests.builders import ROOT

COURSE = read_course()
TERMS = parse_glossary((ROOT / "docs" / "glossary.md").read_text())
# Bold words that are no terms, but stressed.
EMPHASIZED = {"mean", "sum", "its own", "owns", "group", "scale", "skip the step", "α", "β", "data 0", "data 1"}
# One lesson of each kind, as proving all of them takes minutes: `composesim learn dev check` does.
PROVED = ("02-samples", "08-hang", "10-node-loss", "12-fsdp")


@pytest.mark.train
@pytest.mark.parametrize("name", PROVED)
def test_the_solution_passes_and_the_script_fails_for_the_named_reason(name: str) -> None:
    lesson = COURSE.lessons[name]
    proof = prove(lesson)

    assert proof.problems == ()
    if lesson.lesson.picture == "rounds":
        again = {script: sum(line.count("▒") for line in drawn[2:]) for script, drawn in proof.pictures.items()}
        assert max(again[script] for script in (SOLUTION, *lesson.scripts(ACCEPT))) <= 10
        assert again[SCRIPT] >= 25


@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "script", "columns"),
    [
        ("01-ranks", SCRIPT, "##··" * 6 + "##"),
        ("01-ranks", "all_gather.py", "0" * 7 + "1" * 7 + "2" * 7 + "3" * 5),
        ("05-metrics", SCRIPT, "#1" + "01" * 31),
        ("05-metrics", "rank_0_alone.py", "0" * 64),
        ("09-checkpoints", "renamed.py", "model.tmp"),
    ],
)
def test_the_picture_shows_what_the_ranks_did(name: str, script: str, columns: str) -> None:
    lesson = COURSE.lessons[name]
    texts = {SCRIPT: lesson.read(SCRIPT), **lesson.scripts(ACCEPT)}
    with staged(lesson, next(text for file, text in texts.items() if file.endswith(script))) as project:
        assert columns in attempt(lesson, project).picture


@pytest.mark.train
@pytest.mark.parametrize(("script", "status"), [(SOLUTION, "passed"), (SCRIPT, "failed")])
def test_a_lesson_compares_the_state_before_and_after_a_restart(script: str, status: str) -> None:
    lesson = COURSE.lessons["28-same-run"]
    with staged(lesson, lesson.read(script)) as project:
        outcome = attempt(lesson, project).outcome

    statuses = {each.id: each.status for each in outcome.findings}
    assert outcome.status == status, outcome.reason
    assert (statuses["recoveries_at_least"], statuses["state_continuous"]) == ("passed", status)


@pytest.mark.parametrize("name", COURSE.lessons)
def test_each_lesson_has_other_solutions_and_cheats(name: str) -> None:
    lesson = COURSE.lessons[name]

    assert len(lesson.scripts(ACCEPT)) >= 2
    assert len(lesson.scripts(REJECT)) >= 3
    assert not any("accept" in path or "reject" in path for path in lesson.delivered)


@pytest.mark.parametrize("name", COURSE.lessons)
def test_the_answer_names_the_number_that_predictions_are_compared_with(name: str) -> None:
    lesson = COURSE.lessons[name]
    assert lesson.lesson.number is not None
    assert lesson.lesson.agrees(lesson.lesson.answer)


@pytest.mark.parametrize("name", COURSE.lessons)
@pytest.mark.parametrize("file", [PAGE, SCRIPT])
def test_what_a_student_reads_first_does_not_answer_the_question(name: str, file: str) -> None:
    """A single digit occurs everywhere, so of those only the words beside them count: the beginning of the answer."""
    lesson = COURSE.lessons[name]
    answer, told = words_of(re.split(r"[.:;] ", lesson.lesson.answer)[0]), words_of(lesson.read(file))

    assert lesson.lesson.number is not None
    assert lesson.lesson.number < 10 or f"{lesson.lesson.number:.0f}" not in told
    assert len(answer) == 1 or not phrases(answer) & phrases(told, length=min(5, len(answer)))


@pytest.mark.parametrize("name", COURSE.lessons)
def test_composesim_explains_the_concepts_of_a_lesson_and_the_bold_words_of_its_page(name: str) -> None:
    lesson = COURSE.lessons[name]
    bold = [word for word in re.findall(r"\*\*([^*]+)\*\*", lesson.read(PAGE)) if re.fullmatch(r"[\w -]+", word)]

    assert lesson.lesson.concepts
    for word in [*lesson.lesson.concepts, *(word for word in bold if word not in EMPHASIZED)]:
        find_topic(word, TERMS)  # raises SpecError if it is not in the glossary


def words_of(text: str) -> list[str]:
    """Return the words of a text, and its numbers without separators."""
    return re.findall(r"\w+(?:\.\d+)?", re.sub(r"(?<=\d)[,_](?=\d{3})", "", text.lower()))


def phrases(words: list[str], length: int = 5) -> set[tuple[str, ...]]:
    """Return all phrases of so many words, or of all if there are fewer."""
    length = min(length, len(words))
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


@pytest.mark.train
@pytest.mark.parametrize("name", COURSE.lessons)
def test_the_course_passes_its_own_check(name: str) -> None:
    """Solutions make no mistake of another lesson; without faults, as `check` runs them."""
    lesson = COURSE.lessons[name]
    with staged(lesson, lesson.read(SOLUTION)) as project:
        for file, text in lesson.own_files.items():
            (project / name / file).write_text(text)
        values = {
            **{"engine": "local", "script": f"{name}/{lesson.lesson.program}", "nodes": lesson.lesson.nodes},
            **{"nproc_per_node": lesson.lesson.ranks_per_node, "gpus": "none"},
        }
        request = Request(spec=ClusterSpec.model_validate(values), folder=project, isolates=True)
        report = check(Session(check_request(request)), QuietListener())

    assert {each.id: each.detail for each in report.checks if each.status in ("failed", "warned")} == {}
    assert not report.run_failed


@pytest.mark.parametrize("model", [Course, Lesson])
def test_the_schemas_are_current(model: type[BaseModel], update_golden: bool) -> None:
    """`pytest --update-golden` updates them."""
    path = TEMPLATES / f"{model.__name__.lower()}.schema.json"
    text = json.dumps(model.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
    if update_golden:
        path.write_text(text)

    assert path.read_text() == text


@pytest.mark.parametrize("name", COURSE.lessons)
def test_the_schema_accepts_the_lessons(name: str) -> None:
    values = yaml.safe_load(COURSE.lessons[name].read("lesson.yaml"))
    schema = json.loads((TEMPLATES / "lesson.schema.json").read_text())

    Draft202012Validator(schema).validate(values)
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({**values, "hint": "one"})


@pytest.mark.parametrize("name", COURSE.lessons)
def test_a_page_is_one_screen_and_the_solution_differs_from_the_script(name: str) -> None:
    lesson = COURSE.lessons[name]

    assert len(lesson.read(PAGE).split()) <= MAX_WORDS
    assert lesson.read(SOLUTION) != lesson.read("script.py")
    assert " torch" in lesson.read("script.py")  # it imports it, or a part of it
    compile(lesson.read("script.py"), name, "exec")


def test_a_new_course_can_be_read_and_is_not_overwritten(tmp_path: Path) -> None:
    begin_course(tmp_path)

    assert [*read_course(tmp_path).lessons] == ["01-first"]
    with pytest.raises(SpecError, match="already holds a course"):
        begin_course(tmp_path)


def test_a_lesson_without_its_solution_is_refused(tmp_path: Path) -> None:
    begin_course(tmp_path)
    (tmp_path / "lessons" / "01-first" / SOLUTION).unlink()

    with pytest.raises(SpecError, match="'01-first' has no solution"):
        read_course(tmp_path)


def test_bytecode_that_git_left_is_no_lesson(tmp_path: Path) -> None:
    begin_course(tmp_path)
    left = tmp_path / "lessons" / "02-renamed" / "__pycache__"
    left.mkdir(parents=True)
    (left / "script.cpython-311.pyc").write_bytes(b"")

    assert [*read_course(tmp_path).lessons] == ["01-first"]
