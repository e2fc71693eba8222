"""A recipe of another package, as in docs/recipe-plugins.md, found by its entry point: on both engines, in every kind of run."""

from __future__ import annotations

import re

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

_FILE = re.compile(r"<!-- file: (?P<name>[\w.]+) -->\n```python\n(?P<text>.*?)```\n", re.DOTALL)
FILES = {block["name"]: block["text"] for block in _FILE.finditer((ROOT / "docs" / "recipe-plugins.md").read_text())}

SAME = "from greetings.recipe import *\n"
WRONG = {
    "failing.py": SAME + "def node_command(cluster):\n    return cluster.port / 0\n",
    "untyped.py": SAME + "PACKAGES = ['ray']\n",
    "leaving.py": "raise SystemExit(3)\n",
}
ENTRIES = "[composesim.recipes]\ngreet = greetings.recipe\nbroken = json\n" + "".join(
    f"{name.removesuffix('.py')} = greetings.{name.removesuffix('.py')}\n" for name in WRONG
)

# The framework decides what nodes run, and this one does not wait until they have reported it.
TRAIN = """
import os, time
from pathlib import Path
folder = Path(os.environ["COMPOSESIM_DIR"])
while not any(log.read_text().endswith("\\n") for log in folder.rglob("node-1.1.log")):
    time.sleep(0.01)
print("trained")
"""


@pytest.fixture
def outside(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with another package installed, with a recipe named `greet`."""
    site = project.folder / "site"
    info = site / "greetings-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "greetings").mkdir()
    for name, text in {**FILES, **WRONG, "__init__.py": ""}.items():
        (site / "greetings" / name).write_text(text)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return project


def _words(project: Project, engine: str, run: str) -> tuple[str, ...]:
    own = ("--recipe", "greet", "--option", "greeting=good morning", "--env", f"PYTHONPATH={project.folder / 'site'}")
    return ("up", "--json", *own, "--engine", engine, "--nodes", "2", "--name", run)


def test_the_driver_hears_of_the_nodes_and_ends_the_run(outside: Project, engine: str) -> None:
    """Two nodes join, the driver runs the script, and the report has its metrics and its status."""
    run = outside.named("greet")
    script = outside.write("train.py", TRAIN)

    done = outside.run(*_words(outside, engine, run), script)

    report = done.report
    assert (report["verdict"], report["recipe"], done.status) == ("passed", "greet", 0), done
    assert report["driver"] == {"exit_code": 0, "step": 1, "facts": {"words": "2 nodes answer"}}
    assert report["timings"]["ready_s"] > 0
    assert report["metrics"]["greeted"] == 2
    assert outside.log_of(run, "driver.0").splitlines() == [
        '{"step": 1, "greeted": 2}',
        "trained",
    ]
    assert outside.log_of(run, "node-1.1").startswith("good morning from node-1, 1 of 2, to ")
    assert all(node["exit_code"] == 0 for node in report["nodes"])


def test_what_the_script_raises_is_the_cause(outside: Project, engine: str) -> None:
    """With the script's traceback, and none of our frames."""
    script = outside.write("train.py", "def train():\n    raise ValueError('no data')\ntrain()")

    done = outside.run(*_words(outside, engine, outside.named("raises")), script)

    assert (done.report["verdict"], done.status) == ("failed", 1)
    cause = done.report["cause"]
    assert (cause["node"], cause["rank"], cause["message"]) == ("driver", None, "ValueError: no data")
    assert cause["traceback"].count("File") == 2


def test_what_an_exit_code_means_is_the_recipes_to_say(outside: Project) -> None:
    """The driver's own failures have separate codes."""
    script = outside.write("train.py", "import os; os._exit(7)")

    done = outside.run(*_words(outside, "local", outside.named("seven")), script)

    assert done.report["cause"]["message"] == "the driver ended with exit code 7: nobody was greeted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipe", "nothing"), "unknown recipe 'nothing'; there are ddp, exec, "),
        (("--recipe", "broken"), "recipe 'broken' (json) is invalid: it has no "),
        (("--recipe", "failing"), "recipe 'failing' (greetings.failing) failed in node_command: ZeroDivisionError: "),
        (("--recipe", "untyped"), "recipe 'untyped' (greetings.untyped) is invalid: PACKAGES is not a mapping"),
        (("--recipe", "leaving"), "recipe 'leaving' (greetings.leaving) cannot be loaded: SystemExit: 3"),
        (("--recipe", "greet", "--option", "color=red"), "recipe 'greet' has no option 'color'; there are greeting"),
        (("--recipe", "greet"), "recipe 'greet' has no example of its own"),
    ],
)
def test_what_is_no_recipe_is_refused(outside: Project, words: tuple[str, ...], message: str) -> None:
    """Before anything starts."""
    script = () if message.endswith("own") else (str(outside.write("train.py", "")),)

    done = outside.run("plan", "--engine", "local", *words, *script)

    assert done.status == 2
    assert message in done.stderr
