"""The site has a page for each lesson and each term, made from what the product shows, and their links lead to pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from compose_sim.core.glossary import parse_glossary, parse_page
from compose_sim.plugins.learn.app.author import begin_course, write_pages
from compose_sim.plugins.learn.app.course_folder import SCRIPT, SOLUTION, read_course
from compose_sim.plugins.learn.core.pages import address_of
from tests.builders import ROOT

COURSE = read_course()
TOPICS = parse_glossary((ROOT / "docs" / "glossary.md").read_text())
MARKER = "<!-- The site links its own pages here. -->"  # scripts/site.sh puts links there


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site").resolve()
    write_pages(COURSE, folder)
    return folder


def linked(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text())}


def test_each_lesson_and_each_term_has_its_address(site: Path) -> None:
    terms = {address_of(topic) for topic in TOPICS.values()}

    assert len(terms) == len(TOPICS)
    assert {path.parent.name for path in site.glob("learn/*/index.md")} == {*COURSE.lessons}
    assert {path.parent.name for path in site.glob("terms/*/index.md")} == terms
    assert {"all-gather", "process-group", "no-sync", "1f1b"} <= terms


def test_every_page_can_be_reached_and_no_link_leads_nowhere(site: Path) -> None:
    reached, waiting = set(), [site / "learn" / "index.md", site / "terms" / "index.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        waiting += (linked(page) if page.suffix == ".md" else set()) - reached

    assert reached == {path for path in site.rglob("*") if path.is_file()}


@pytest.mark.parametrize("page", ["glossary.md", "plugins/learn/learn.md"])
def test_the_site_leads_there_from_the_documents(page: str) -> None:
    edits = (ROOT / "scripts" / "site.sh").read_text()

    assert (ROOT / "docs" / page).read_text().splitlines().count(MARKER) == 1
    assert f"marker='{MARKER}'" in edits
    assert f'"$source/docs/{page}"' in edits


@pytest.mark.parametrize("name", COURSE.lessons)
def test_the_page_of_a_lesson_links_its_terms_and_shows_no_solution(site: Path, name: str) -> None:
    lesson, page = COURSE.lessons[name], site / "learn" / name / "index.md"

    assert any(target.parent.parent == site / "terms" for target in linked(page))
    assert lesson.read(SCRIPT).rstrip() in page.read_text()
    assert lesson.read(SOLUTION).rstrip() not in page.read_text()
    assert lesson.lesson.answer not in page.read_text()


@pytest.mark.parametrize("term", [topic.term for topic in TOPICS.values() if topic.page])
def test_the_page_of_a_term_shows_its_drawing(site: Path, term: str) -> None:
    _, frames = parse_page((ROOT / "docs" / TOPICS[term].page).read_text())
    page = (site / "terms" / address_of(TOPICS[term]) / "index.md").read_text()

    assert all(frame in page for frame in frames)


def test_a_bold_word_leads_to_its_term_and_the_term_to_its_lessons(site: Path) -> None:
    lesson, term = site / "learn" / "13-all-reduce" / "index.md", site / "terms" / "ring" / "index.md"

    assert "**[ring](../../terms/ring/index.md)**" in lesson.read_text()
    assert lesson in linked(term)


def test_another_course_may_teach_words_that_are_no_terms(tmp_path: Path) -> None:
    begin_course(tmp_path / "mine")
    course = read_course(tmp_path / "mine")
    (first,) = course.lessons.values()
    odd = replace(first, lesson=first.lesson.model_copy(update={"concepts": ("gossip", "ring")}))

    write_pages(replace(course, lessons={first.name: odd}), tmp_path / "site")

    assert (
        "**Terms:** [ring](../../terms/ring/index.md)\n"
        in (tmp_path / "site" / "learn" / "01-first" / "index.md").read_text()
    )
    notebook = json.loads((tmp_path / "site" / "learn" / "course.ipynb").read_text())
    assert f"learn init . --course {tmp_path / 'mine'}" in "".join(notebook["cells"][1]["source"])
