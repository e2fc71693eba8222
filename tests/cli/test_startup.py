"""What the command loads before it does anything, in an environment with many packages."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cli.conftest import UP, Project


def test_plugins_of_pydantic_are_for_the_script_and_not_for_the_command(project: Project, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    (packages / "plug-1.0.dist-info").mkdir(parents=True)
    (packages / "plug-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (packages / "plug-1.0.dist-info" / "entry_points.txt").write_text("[pydantic]\nplug = plug:plugin\n")
    (packages / "plug.py").write_text("import sys\nprint('the plugin was loaded', file=sys.stderr)\nplugin = None\n")
    project.write("train.py", "import os\nprint('choice:', os.environ.get('PYDANTIC_DISABLE_PLUGINS'))\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))

    left = project.run(*UP, "--nodes", "1", "train.py", env=environment)
    chosen = project.run(*UP, "--nodes", "1", "train.py", env={**environment, "PYDANTIC_DISABLE_PLUGINS": "other"})

    assert (left.returncode, chosen.returncode) == (0, 0), left.stderr + chosen.stderr
    assert "the plugin was loaded" not in left.stdout + left.stderr
    assert "choice: None" in left.stdout
    assert "choice: other" in chosen.stdout
