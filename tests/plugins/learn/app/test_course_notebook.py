"""The course as a notebook: valid for Jupyter, without solutions, and its cells run in a real kernel."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from compose_sim.plugins.learn.app.course_folder import SCRIPT, SOLUTION, read_course
from compose_sim.plugins.learn.app.workbook import Workbook
from tests.builders import PATIENCE_S
from tests.cli.conftest import Project

COURSE = read_course()
FIELDS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}


@pytest.fixture
def workbook(tmp_path: Path) -> Workbook:
    return Workbook.begin(tmp_path / "lessons", COURSE, shipped=True)


def cells_of(text: str) -> dict[str, str]:
    return {cell["id"]: "".join(cell["source"]) for cell in json.loads(text)["cells"]}


def test_a_notebook_has_the_fields_of_its_format(workbook: Workbook) -> None:
    """The format is nbformat 4.5, whose schema requires these; another field in a cell makes it invalid."""
    notebook = json.loads(workbook.notebook())
    names = [cell["id"] for cell in notebook["cells"]]

    assert {*notebook} == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {*notebook["metadata"]["kernelspec"]} >= {"name", "display_name"}
    assert [{*cell} for cell in notebook["cells"]] == [FIELDS[cell["cell_type"]] for cell in notebook["cells"]]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)


@pytest.mark.parametrize("name", COURSE.lessons)
def test_a_lesson_is_a_page_a_script_and_the_command_that_judges_it(workbook: Workbook, name: str) -> None:
    lesson, cells = COURSE.lessons[name], cells_of(workbook.notebook())
    first, _, script = cells[f"{name}-script"].partition("\n")
    ranks = lesson.lesson.nodes * lesson.lesson.ranks_per_node

    assert script == lesson.read(SCRIPT).rstrip()
    assert all(text in cells[f"{name}-page"] for text in (lesson.lesson.question, *lesson.lesson.hints))
    assert cells[f"{name}-page"].count("<details>") == cells[f"{name}-page"].count("</details>") == 3
    assert cells[f"{name}-run"] == f"!composesim learn run {name} </dev/null"
    if lesson.lesson.program == SCRIPT:
        assert first == f"%%ranks {ranks} --nodes {lesson.lesson.nodes}"
    else:
        assert first == f"%%writefile {name}/script.py"
        assert lesson.lesson.program in cells[f"{name}-how"]
        assert bool(lesson.lesson.steps) == ("killed" in cells[f"{name}-how"])


def test_a_notebook_holds_no_solution(workbook: Workbook) -> None:
    text = workbook.notebook()
    held = "".join(cells_of(text).values())

    for lesson in COURSE.lessons.values():
        own = {line.strip() for line in lesson.read(SOLUTION).splitlines() if len(line) > 40 and " import " not in line}
        told = lesson.read(SCRIPT) + "".join(lesson.lesson.hints)
        assert [line for line in own if line in held and line not in told and line not in others(lesson.name)] == []
        assert lesson.lesson.answer not in held


def others(name: str) -> str:
    """Return what students read in the other lessons."""
    return "".join(each.read(SCRIPT) + each.read("page.md") for each in COURSE.lessons.values() if each.name != name)


def test_a_notebook_is_not_overwritten(project: Project) -> None:
    assert project.run("learn", "init", "lessons").returncode == 0
    here = Project(project.folder / "lessons")
    (here.folder / "02-samples" / SCRIPT).write_text("mine = 1\n")

    first, second = here.run("learn", "notebook"), here.run("learn", "notebook")
    third = here.run("learn", "notebook", "--output", "course-2.ipynb")

    assert (first.returncode, second.returncode, third.returncode) == (0, 2, 0)
    assert f"Try: composesim learn notebook --output {here.folder}/course-2.ipynb" in second.stderr
    assert (here.folder / "course.ipynb").read_text() == (here.folder / "course-2.ipynb").read_text()
    assert cells_of((here.folder / "course.ipynb").read_text())["02-samples-script"].endswith("\nmine = 1")


@pytest.mark.train
def test_cells_run_in_a_kernel_in_an_empty_folder(workbook: Workbook, tmp_path: Path) -> None:
    """The first cell brings the files; one lesson runs on two ranks in its cell, and two are judged by the command."""
    cells, elsewhere = cells_of(workbook.notebook()), tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    manager, client = start_new_kernel(cwd=str(elsewhere), env={**os.environ, "PATH": path})
    try:
        run(client, cells["first"])
        run(client, cells["first"])  # again, which changes nothing
        cell = cells["02-samples-script"]
        ranks = run(client, f"{cell}\n    print('ended')")
        wrong = run(client, cells["02-samples-run"])
        for name in ("01-ranks", "02-samples"):
            run(client, f"%%writefile {name}/script.py\n{COURSE.lessons[name].read(SOLUTION)}")
        right = [run(client, cells[f"{name}-run"]) for name in ("01-ranks", "02-samples")]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

    assert re.findall(r"rank (\d) \| ended", ranks) == ["0", "1"]
    assert "02-samples not yet" in wrong
    assert "01-ranks passed" in right[0]
    assert "02-samples passed" in right[1]


def run(client: Any, code: str) -> str:
    """Return what a cell prints, and its value as text."""
    printed: list[str] = []

    def output(message: dict[str, Any]) -> None:
        content = message["content"]
        printed.append(content.get("text", "") or content.get("data", {}).get("text/plain", ""))

    reply = client.execute_interactive(code, timeout=PATIENCE_S, output_hook=output)
    assert reply["content"]["status"] == "ok", (reply["content"], printed)
    return "".join(printed)
