"""A recipe of another package, found by its entry point, that one program drives: on both engines, through all that a run is."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import Project

RECIPE = """
from compose_sim.core.recipes import driven

EMULATES_GPUS, RUNS_COMMANDS, DRIVEN = False, False, True
PACKAGES, EXAMPLE, OPTIONS, EXIT_CODES = {}, "", {"greeting": "what is said"}, {7: "nobody was greeted"}
launcher = lambda spec: "command"
environment = lambda cluster: {"GREETING": cluster.spec.options.get("greeting", "hello")}
ports = lambda cluster: ()

def master_command(cluster):
    return driven.master_command(cluster, (f"{cluster.spec.env['HERE']}/greeter.py",))

def node_command(cluster):
    return driven.node_command(cluster, "command", ("sh", f"{cluster.spec.env['HERE']}/member.sh"))
"""

# The driver speaks the protocol itself: one JSON line a message.
GREETER = """
import json, os, socket, subprocess, sys
link = socket.socket(fileno=int(os.environ["COMPOSESIM_DRIVER_LINK"])).makefile("rw")
def say(**message):
    print(json.dumps(message), file=link, flush=True)
say(type="accepting")
nodes = []
while len(nodes) < 2:
    nodes = json.loads(link.readline())["nodes"]
say(type="ready", words=f"{len(nodes)} nodes answer")
print("greeting", *(node["node"] for node in nodes), flush=True)
print(json.dumps({"step": 1, "greeted": len(nodes)}), flush=True)
program = sys.argv[sys.argv.index("--") + 1:]
sys.exit(subprocess.call([sys.executable, os.environ["COMPOSESIM_DIR"] + "/node/script.py", *program]))
"""

MEMBER = 'echo "$GREETING from $COMPOSESIM_NODE, $MASTER_ADDR:$MASTER_PORT, as $RANK of $WORLD_SIZE"; exec sleep 600'


@pytest.fixture
def outside(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project beside which another package has been installed, with a recipe named `greet`."""
    site = project.folder / "site"
    info = site / "greetings-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "greetings.py").write_text(RECIPE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[composesim.recipes]\ngreet = greetings\nbroken = json\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    project.write("greeter.py", GREETER)
    project.write("member.sh", MEMBER)
    return project


def _words(project: Project, engine: str, run: str) -> tuple[str, ...]:
    own = ("--recipe", "greet", "--option", "greeting=good morning", "--env", f"HERE={project.folder}")
    return ("up", "--json", *own, "--engine", engine, "--nodes", "2", "--name", run)


def test_the_driver_hears_of_the_nodes_and_its_end_is_the_runs(outside: Project, engine: str) -> None:
    """Two nodes join, the driver runs the script, its metrics and its status are the report's."""
    run = outside.named("greet")
    script = outside.write("train.py", "print('trained')")

    done = outside.run(*_words(outside, engine, run), script)

    report = done.report
    assert (report["verdict"], report["recipe"], done.status) == ("passed", "greet", 0), done
    assert report["driver"] == {"exit_code": 0, "step": 1, "facts": {"words": "2 nodes answer"}}
    assert report["timings"]["ready_s"] > 0
    assert report["metrics"]["greeted"] == 2
    logs = outside.folder / ".composesim" / "runs" / run / "logs"
    assert (logs / "driver.0.log").read_text().splitlines() == [
        "greeting node-0 node-1",
        '{"step": 1, "greeted": 2}',
        "trained",
    ]
    assert (logs / "node-1.1.log").read_text().startswith("good morning from node-1, ")
    assert "as 1 of 2" in (logs / "node-1.1.log").read_text()
    assert all(node["exit_code"] == 0 for node in report["nodes"])


def test_what_the_script_raises_is_the_cause(outside: Project, engine: str) -> None:
    """With its own traceback, and none of our frames."""
    script = outside.write("train.py", "def train():\n    raise ValueError('no data')\ntrain()")

    done = outside.run(*_words(outside, engine, outside.named("raises")), script)

    assert (done.report["verdict"], done.status) == ("failed", 1)
    cause = done.report["cause"]
    assert (cause["node"], cause["rank"], cause["message"]) == ("driver", None, "ValueError: no data")
    assert cause["traceback"].count("File") == 2


def test_what_an_exit_code_means_is_the_recipes_to_say(outside: Project) -> None:
    """The driver's own failures have codes of their own."""
    script = outside.write("train.py", "import os; os._exit(7)")

    done = outside.run(*_words(outside, "local", outside.named("seven")), script)

    assert done.report["cause"]["message"] == "the driver ended with exit code 7: nobody was greeted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipe", "nothing"), "there is no recipe named 'nothing'; there are: ddp, exec, "),
        (("--recipe", "broken"), "'json' is no recipe: it has no "),
        (("--recipe", "greet", "--option", "colour=red"), "recipe 'greet' has no option 'colour': it takes greeting"),
        (("--recipe", "greet"), "recipe 'greet' has no example of its own"),
    ],
)
def test_what_is_no_recipe_is_refused(outside: Project, words: tuple[str, ...], message: str) -> None:
    """Before anything starts."""
    script = () if message.endswith("own") else (str(outside.write("train.py", "")),)

    done = outside.run("plan", "--engine", "local", *words, *script)

    assert done.status == 2
    assert message in done.stderr
