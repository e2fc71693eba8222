"""`composesim export` as it is typed."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Project


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("skypilt", "there is no 'skypilt'; did you mean 'skypilot'?"),
        ("kubernetes", "did you mean 'jobset'?"),
    ],
)
def test_the_answer_names_the_target_that_was_meant(target: str, answer: str, project: Project) -> None:
    project.write("train.py", "")

    done = project.run("export", target, "train.py")

    assert (done.returncode, answer in done.stderr) == (2, True), done.stderr


def test_a_document_is_not_written_through_a_link(project: Project) -> None:
    project.write("train.py", "print('trained')\n")
    project.write("precious", "precious")
    (project.folder / "job.sh").symlink_to("precious")

    done = project.run("export", "torchrun", "-o", "job.sh", "train.py")

    assert done.returncode == 0, done.stderr
    assert (project.folder / "precious").read_text() == "precious"
