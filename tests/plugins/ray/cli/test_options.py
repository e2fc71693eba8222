"""The options and examples of the recipe `ray`, as commands and calls take them."""

from __future__ import annotations

from pathlib import Path

import composesim
import pytest

from compose_sim.plugins.ray import core as recipe
from tests.cli.conftest import Project


def test_an_example_that_ships_is_run_by_its_name_unless_the_folder_has_a_script_of_that_name(project: Project) -> None:
    """Examples can be run from any folder."""
    words = ("--recipe", "ray", "--image", "an-image", "ray_faults.py")
    project.run("render", "shipped", *words)
    (project.folder / "ray_faults.py").write_text("print('here')\n")
    project.run("render", "own", *words)

    shipped, own = ((project.folder / name / "code/ray_faults.py").read_text() for name in ("shipped", "own"))
    assert shipped == (Path(recipe.EXAMPLE).with_name("ray_faults.py")).read_text()
    assert own == "print('here')\n"


def test_an_option_with_a_typing_error_is_refused_with_the_right_one(project: Project) -> None:
    project.write("train.py", "")
    done = project.run("plan", "--recipe", "ray", "--option", "cpu=2", "train.py")

    assert done.returncode == 2
    assert "did you mean 'cpus'?" in done.stderr


def test_a_recipe_without_ranks_of_its_own_takes_no_function() -> None:
    with pytest.raises(composesim.SpecError, match="recipe 'ray' runs scripts"):
        composesim.run(lambda: 1, recipe="ray")
