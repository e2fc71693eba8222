"""A rendered folder with the example of the recipe `paddle`."""

from __future__ import annotations

from tests.cli.conftest import Project


def test_a_rendered_example_brings_its_data_and_none_of_the_other_examples(project: Project) -> None:
    """An example reads data in the first folder above it that has any."""
    project.run("render", "out", "--recipe", "paddle", "--image", "an-image")

    code = project.folder / "out" / "code"
    names = {str(path.relative_to(code)) for path in code.rglob("*") if path.is_file()}
    assert {"paddle_digits.py", "data/digits.csv.gz"} <= names
    assert not [name for name in names if name.endswith(".py") and name != "paddle_digits.py"]
