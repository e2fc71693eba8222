"""Write a course as one Jupyter notebook: pages as text, scripts as cells that run on several ranks, and no solution."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compose_sim.plugins.learn.core.lesson import SCRIPT, Course, Lesson

_PYTHON = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_FIRST = """\
# Run this cell first. It writes the files of the lessons beside this notebook, unless they are there.
%load_ext composesim
!test -e .composesim/lessons.json || composesim learn init .{course}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonTexts:
    """A lesson with the texts that a student reads and edits."""

    name: str  # 03-epochs
    lesson: Lesson
    page: str
    script: str

    @property
    def ranks(self) -> str:
        """The first line of a cell that runs the script as the lesson does."""
        nodes, ranks = self.lesson.nodes, self.lesson.ranks_per_node
        return f"%%ranks {nodes * ranks}" + (f" --nodes {nodes}" if nodes > 1 else "")

    @property
    def beyond_a_cell(self) -> str:
        """What an attempt at the lesson needs besides the script; "" if a cell can run all of it."""
        program = f"`{self.lesson.program}` calls this script and measures what it does"
        needed = (
            *([program] if self.lesson.program != SCRIPT else []),
            *(["ranks or nodes are killed meanwhile"] if self.lesson.steps else []),
        )
        return ", and ".join(needed)


def to_notebook(course: Course, lessons: Sequence[LessonTexts], folder: str) -> str:
    """Return the text of an .ipynb file (nbformat 4.5). `folder` is that of the course, "" for the one that ships."""
    first = _FIRST.format(course=f" --course {shlex.quote(folder)}" if folder else "")
    cells = [
        _markdown("welcome", f"# {course.title}\n\n{course.welcome}"),
        _code("first", first),
        *(cell for lesson in lessons for cell in _cells_of(lesson)),
        _markdown("farewell", course.farewell),
    ]
    metadata = {"kernelspec": _PYTHON, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _cells_of(texts: LessonTexts) -> list[dict[str, Any]]:
    name, needed = texts.name, texts.beyond_a_cell
    file = f"%%writefile {name}/{SCRIPT}"
    if needed:
        begins, how = (
            file,
            f"A cell alone cannot run this lesson: {needed}. Run the cell above to save it, then this one:",
        )
    else:
        begins, how = texts.ranks, f"To have it judged, put `{file}` in place of the first line, and run both cells:"
    return [
        _markdown(f"{name}-page", _page(texts)),
        _code(f"{name}-script", f"{begins}\n{texts.script.rstrip()}"),
        _markdown(f"{name}-how", how),
        # In a kernel, a command has a terminal on which nobody can type, and would wait for a prediction.
        _code(f"{name}-run", f"!composesim learn run {name} </dev/null"),
    ]


def _page(texts: LessonTexts) -> str:
    """Return the page of a lesson with its goal, its question and the hints, which are folded."""
    lesson, name = texts.lesson, texts.name
    folded = (
        f"<details><summary>Hint {number} of {len(lesson.hints)}</summary>\n\n{hint}\n\n</details>"
        for number, hint in enumerate(lesson.hints, 1)
    )
    predict = f'`!composesim learn predict {name} --answer "…"` keeps your answer.'
    terms = f"**Terms:** {', '.join(lesson.concepts)}. `!composesim explain TERM` explains one."
    paragraphs = (
        f"# {name}: {lesson.title}",
        texts.page.partition("\n")[2].strip(),  # without its title
        f"**Goal:** {lesson.goal}",
        f"**Predict, before you run it:** {lesson.question} {predict}",
        *([terms] if lesson.concepts else []),
        *folded,
    )
    return "\n\n".join(paragraphs)


def _markdown(name: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(name: str, text: str) -> dict[str, Any]:
    return {**_markdown(name, text), "cell_type": "code", "execution_count": None, "outputs": []}
