"""The options of composesim end where the arguments of the script begin."""

from __future__ import annotations

from tests.cli.conftest import Project


def test_words_behind_two_dashes_belong_to_the_default_script_or_are_the_command(project: Project) -> None:
    """This also applies to verbs with an argument of their own, after which options may follow."""
    (project.folder / "train_ddp.py").write_text("print('here')\n")

    project.run("render", "one", "--image", "an-image", "--", "--epochs", "3")
    project.run("render", "two", "--recipe", "exec", "--image", "an-image", "--", "hostname", "-f")

    assert '"--", "train_ddp.py", "--epochs", "3"]' in (project.folder / "one/docker-compose.yml").read_text()
    assert '"--", "hostname", "-f"]' in (project.folder / "two/docker-compose.yml").read_text()


def test_a_rendered_example_brings_its_data_and_none_of_the_other_examples(project: Project) -> None:
    """An example reads data in the first folder above it that has any."""
    project.run("render", "out", "--recipe", "paddle", "--image", "an-image")

    code = project.folder / "out" / "code"
    names = {str(path.relative_to(code)) for path in code.rglob("*") if path.is_file()}
    assert {"paddle_digits.py", "data/digits.csv.gz"} <= names
    assert not [name for name in names if name.endswith(".py") and name != "paddle_digits.py"]
