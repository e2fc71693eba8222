"""The same command runs again: `rerun`, and `up --watch` when a file changes."""

from __future__ import annotations

import json
import signal

from tests.builders import PATIENCE_S
from tests.cli.conftest import UP, Project

PRINTS = "import sys\nprint(*sys.argv[1:])\n"


def test_rerun_repeats_the_latest_command_in_its_folder(project: Project) -> None:
    inner = project.folder / "inner"
    inner.mkdir()
    (inner / "train.py").write_text(PRINTS)
    (inner / "composesim.yaml").write_text("nodes: 1\nengine: local\nlauncher: env\nkeep: failed\n")
    name = project.folder.name.replace("_", "-")[-20:].strip("-")
    first = project.run("up", "-f", "inner/composesim.yaml", "--name", name, "train.py", "--two words", "3")
    assert first.returncode == 0, first.stderr
    (inner / "train.py").write_text(PRINTS + "sys.exit(4)\n")
    plan = json.loads((inner / ".composesim/runs" / name / "plan.json").read_text())

    again = Project(inner).run("rerun")

    assert (again.returncode, again.stdout) == (1, "node-0 | --two words 3\n")
    assert plan["keep"] is False, "it passed"


def test_what_cannot_run_again_is_refused(project: Project) -> None:
    spec = project.write("composesim.yaml", "nodes: 1\nengine: local\nlauncher: env\n")
    project.run("up", "-f", spec, "-", stdin="print(1)\n")
    piped = project.run("rerun")
    project.write("train.py", PRINTS)
    project.run("up", "-f", spec, "--allow-mount", "/", "train.py")
    mounted = project.run("rerun")

    assert (piped.returncode, mounted.returncode) == (2, 2)
    assert "has no command that can be run again" in piped.stderr
    assert "--allow-mount" in mounted.stderr


def test_watch_runs_at_each_change_and_interrupts_a_run_that_is_under_way(project: Project) -> None:
    seen = []
    script = project.folder / project.write("train.py", "print('one')\n")
    with project.start(*UP, "--nodes", "1", "--watch", "train.py") as up:
        assert up.stdout
        assert up.stderr
        assert up.stdout.readline() == "node-0 | one\n"
        script.write_text("import signal\nprint('waits', flush=True)\nwhile True: signal.pause()\n")
        assert up.stdout.readline() == "node-0 | waits\n"
        script.write_text("print('three')\n")
        assert up.stdout.readline() == "node-0 | three\n"
        waits = 0
        for line in up.stderr:
            seen += [line.strip()] if line.startswith(("✔", "✘")) else []
            waits += line.startswith("Waiting for a change")
            if waits and len(seen) == 3 and line.startswith("Waiting"):
                up.send_signal(signal.SIGINT)
        status = up.wait(PATIENCE_S)

    assert [line.split()[1] for line in seen] in (["passed", "interrupted", "passed"], ["interrupted"] * 2 + ["passed"])
    assert status == 0
