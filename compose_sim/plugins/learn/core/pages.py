"""
Write a course and the glossary as pages of a site, in Markdown for MkDocs, and no solution.

Each lesson is `learn/NAME/`, and each term `terms/NAME/`. Names of lessons and terms are kept, so these links last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from compose_sim.core.glossary import Topic, find_topic
from compose_sim.errors import SpecError
from compose_sim.plugins.learn.core.lesson import Course
from compose_sim.plugins.learn.core.notebook import LessonTexts

_BOLD = re.compile(r"\*\*([\w -]{1,99})\*\*")
_LINK = re.compile(r"\]\(([\w-]{1,99})\.md\)")  # between the pages of terms
_Topics = Mapping[str, Topic]


def pages_of(
    course: Course, lessons: Sequence[LessonTexts], topics: _Topics, explained: Mapping[str, str]
) -> dict[str, str]:
    """Return the texts of all pages by path. `explained` has the text of the page that some topics have, by its path."""
    taught = {each.name: _taught(each, topics) for each in lessons}
    found = {"learn/index.md": _index_of_lessons(course, lessons), "terms/index.md": _index_of_terms(topics)}
    for before, each, after in zip([None, *lessons], lessons, [*lessons[1:], None], strict=False):
        found[f"learn/{each.name}/index.md"] = _lesson_page(each, topics, before, after)
    for topic in topics.values():
        names = [name for name, terms in taught.items() if topic in terms]
        found[f"terms/{address_of(topic)}/index.md"] = _term_page(topic, explained.get(topic.page, ""), names)
    return found


def address_of(topic: Topic) -> str:
    """Return the name of a term in the address of its page, such as `all-reduce`."""
    return re.sub(r"[^a-z0-9]+", "-", topic.term.lower()).strip("-")


def _taught(lesson: LessonTexts, topics: _Topics) -> list[Topic]:
    """Return the terms that a lesson teaches, each once; those that another course has invented are in no glossary."""
    found = (_topic(name, topics) for name in lesson.lesson.concepts)
    return list(dict.fromkeys(topic for topic in found if topic))


def _topic(name: str, topics: _Topics) -> Topic | None:
    try:
        return find_topic(name, topics)
    except SpecError:
        return None


def _index_of_lessons(course: Course, lessons: Sequence[LessonTexts]) -> str:
    rows = (f"| [{each.name}]({each.name}/index.md) | {each.lesson.title} |" for each in lessons)
    last = "To take them: `composesim learn init lessons`. All of them in one notebook: [course.ipynb](course.ipynb)"
    return "\n".join((f"# {course.title}", "", course.welcome, "", "| Lesson | |", "|---|---|", *rows, "", last, ""))


def _index_of_terms(topics: _Topics) -> str:
    rows = (f"| [{topic.term}]({address_of(topic)}/index.md) | {topic.definition} |" for topic in topics.values())
    return "\n".join(("# Terms", "", "| Term | Meaning |", "|---|---|", *rows, ""))


def _lesson_page(texts: LessonTexts, topics: _Topics, before: LessonTexts | None, after: LessonTexts | None) -> str:
    lesson, taught = texts.lesson, _taught(texts, topics)
    beside = (
        f"[{word}: {each.name}](../{each.name}/index.md)"
        for word, each in (("Before", before), ("Next", after))
        if each
    )
    return "\n\n".join(
        (
            f"# {lesson.title}",
            f"**Goal:** {lesson.goal}",
            _linked(texts.page.partition("\n")[2].strip(), topics),
            f"**Predict, before you run it:** {lesson.question}",
            *([f"**Terms:** {', '.join(_link_to(each, each.term) for each in taught)}"] if taught else []),
            "## The script",
            f"```python\n{texts.script.rstrip()}\n```",
            f"To correct it: `composesim learn init lessons`, then `composesim learn run {texts.name}` in that folder.",
            *(f'??? tip "Hint {number}"\n    {" ".join(hint.split())}' for number, hint in enumerate(lesson.hints, 1)),
            f"{' · '.join((*beside, '[All lessons](../index.md)'))}\n",
        )
    )


def _term_page(topic: Topic, explained: str, lessons: Sequence[str]) -> str:
    links = ", ".join(f"[{name}](../../learn/{name}/index.md)" for name in lessons)
    parts = (
        f"# {topic.term}",
        topic.definition,
        f"Also: {', '.join(topic.also)}" if topic.also else "",
        _LINK.sub(r"](../\1/index.md)", explained.partition("\n")[2].strip()),  # without its title
        f"Lessons: {links}" if links else "",
        f'`composesim explain "{topic.term}"` · [All terms](../index.md)\n',
    )
    return "\n\n".join(part for part in parts if part)


def _linked(page: str, topics: _Topics) -> str:
    """Return a page whose bold words lead to their terms; those that are only stressed stay."""

    def link(found: re.Match[str]) -> str:
        topic = _topic(found[1], topics)
        return f"**{_link_to(topic, found[1])}**" if topic else found[0]

    return _BOLD.sub(link, page)


def _link_to(topic: Topic, words: str) -> str:
    return f"[{words}](../../terms/{address_of(topic)}/index.md)"
