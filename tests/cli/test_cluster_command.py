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
