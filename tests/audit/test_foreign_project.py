"""Root reads, runs and writes nothing in a project of another user, unless it trusts that user; then it works there as in its own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import composesim as api
import pytest

from compose_sim.cli import VERBS, main
from compose_sim.engine.project_owner import TRUST
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import ENGINES, built_in
from tests.audit.test_hostile_script import composesim

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
OWNER, NAME = 65534, "nobody"
REFUSAL = f"this project belongs to {NAME}, who owns"
HINT = f"sudo -u {NAME} composesim …"
UP = ("up", "--engine", "local", "--recipe", "exec")
OF_FILES = {"open", "os.chmod", "os.chown", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir"}
OF_PROGRAMS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
# What the second audit carried out as root: code by LD_PRELOAD, an interpreter, sbatch, a mount that the owner cannot reach.
HOSTILE = f"""
env: {{LD_PRELOAD: /proc/self/cwd/evil.so}}
env_file: [settings.env]
python: venv/bin/python
engine: {("local", *built_in(ENGINES))[-1]}
mounts: ["/root:/x:ro"]
"""
RUN = ".composesim/runs/demo"
VERBS_OF_PROJECTS = {
    "up": ("train.py",),
    "check": ("train.py",),
    "play": ("node-loss", "train.py"),
    "plan": ("train.py",),
    "render": ("rendered", "train.py"),
    "export": ("torchrun", "train.py"),
    "rerun": (),
    "ps": (),
    "logs": (),
    "exec": ("node-0", "--", "id"),
    "attach": (),
    "wait": (),
    "stats": (),
    "fault": ("kill", "node-0"),
    "heal": (),
    "link": ("100mbit",),
    "scale": ("3",),
    "down": (),
    "prune": (),
    "report": (),
    "view": (),
    "trace": (),
    "profile": (),
    "dump": (),
    "doctor": (),
    "init": ("--force",),
    "learn": ("list",),
    "skill": (),
    "top": (),
}
OTHER_WORDS = [
    ("up", "--recipe", "exec", "--", "id"),
    ("up", "-m", "train"),
    ("check", "--engine", "docker"),
    ("play", "loss.yaml", "train.py"),
    ("plan", "--peak-memory", "train.py"),
    ("export", "slurm", "-o", "job.sh", "train.py"),
    ("ps", "--all"),
    ("logs", "--run", "demo"),
    ("exec", "--run", "demo", "node-0", "--", "id"),
    ("rerun", "demo"),
    ("down", "--run", "demo", "--purge"),
    ("down", "--all", "--yes", "--everywhere"),
    ("prune", "--finished", "--everywhere"),
    ("report", "--html", "run.html"),
    ("report", f"./{RUN}"),
    ("learn",),
    ("learn", "init", "lessons"),
    ("learn", "run"),
    ("learn", "grade", "."),
    ("learn", "dev", "new", "course"),
    ("init", "below"),
]
ANYWHERE = [
    ("--help",),
    ("--version",),
    ("help",),
    ("help", "up"),
    ("explain", "rank"),
    ("completion", "bash"),
    ("check", "--explain", "params-after-wrap"),
    ("play", "--list"),
    *((verb, "--help") for verb in VERBS),
    ("fault", "kill", "--help"),
    ("learn", "run", "--help"),
]


def offered(lists_of_words: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the lists whose verb is there: one of a plug-in may have been deleted (`make without`)."""
    return [words for words in lists_of_words if words[0] in VERBS or words[0].startswith("-")]


_noted: list[str] | None = None
_below = ""


def note(event: str, arguments: tuple[object, ...]) -> None:
    """Note an event that reads or writes in the project, or starts a program."""
    if _noted is None or event not in OF_FILES | OF_PROGRAMS:
        return
    first = next(iter(arguments), "")
    path = os.path.abspath(os.fsdecode(first)) if isinstance(first, str | bytes | os.PathLike) else ""
    if event in OF_PROGRAMS or Path(path).is_relative_to(_below):
        _noted.append(f"{event} {arguments[:2]}")


sys.addaudithook(note)


@pytest.fixture(autouse=True)
def trusts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TRUST, "SUDO_UID", "COMPOSESIM_RUNS"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def project() -> Iterator[Path]:
    """A project of another user with hostile settings and a run, outside the folders of pytest, which only their user can enter."""
    with tempfile.TemporaryDirectory(prefix="composesim-foreign-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / RUN).mkdir(parents=True)
        texts = {
            "train.py": "import os\nprint('user', os.getuid())\n",
            "composesim.yaml": HOSTILE,
            ".env": "LD_PRELOAD=/proc/self/cwd/evil.so\n",
            "settings.env": "LD_PRELOAD=/proc/self/cwd/evil.so\n",
            "loss.yaml": "expect:\n  - exit_code: 0\n",
            ".composesim/lessons.json": "{}",
            f"{RUN}/plan.json": "{}",
            f"{RUN}/lock": "",
            f"{RUN}/command.json": json.dumps({"folder": "/", "words": [*UP, "--", "touch", f"{folder}/touched"]}),
        }
        for file, text in texts.items():
            (folder / file).write_text(text)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, OWNER, OWNER)
        yield folder


def run(*words: str, folder: Path, below: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Run a command in this process; return its exit code, and what it did below a folder."""
    global _noted, _below
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["composesim", *words])
    _noted, _below = [], str(below)
    try:
        main()
    except SystemExit as end:
        return (end.code if isinstance(end.code, int) else 0), _noted
    finally:
        _noted = None
    return 0, []


@pytest.mark.parametrize(
    "words", offered([*((verb, *words) for verb, words in VERBS_OF_PROJECTS.items()), *OTHER_WORDS]), ids=" ".join
)
def test_every_verb_refuses_before_it_reads_anything(
    words: tuple[str, ...], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, done = run(*words, folder=project, below=project, monkeypatch=monkeypatch)

    printed = capsys.readouterr().err
    assert (code, done) == (2, [])
    assert f"{REFUSAL} '{project}'" in printed
    assert f"Try: {HINT}" in printed


def test_the_list_of_verbs_is_complete() -> None:
    assert {*VERBS} - {*VERBS_OF_PROJECTS} == {"bench", "image", "explain", "completion", "help"}


@pytest.mark.parametrize("engine", ["auto", "local", "docker", *built_in(ENGINES)])
@pytest.mark.parametrize("verb", ["up", "check", "plan"])
def test_every_engine_refuses_before_it_is_asked(
    engine: str, verb: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (verb, "--engine", engine, "--json", "train.py")
    code, done = run(*words, folder=project, below=project, monkeypatch=monkeypatch)

    error = json.loads(capsys.readouterr().out)["error"]
    assert (code, done, error["exit_code"]) == (2, [], 2)
    assert error["message"] == f"{REFUSAL} '{project}'"


@pytest.mark.parametrize(
    "words",
    offered(
        [
            ("plan", "-f", "{project}/composesim.yaml"),
            ("plan", "{project}/train.py"),
            ("plan", "{link}/train.py"),
            ("plan", "-f", "{link}/composesim.yaml"),
            ("play", "{project}/loss.yaml", "train.py"),
            ("render", "{project}/rendered", "train.py"),
            ("report", f"{{project}}/{RUN}"),
            ("view", f"{{link}}/{RUN}"),
            ("--runs-dir", "{project}", "plan", "train.py"),
            ("init", "{project}"),
            ("learn", "init", "{link}"),
            ("learn", "grade", "{project}"),
        ]
    ),
    ids=" ".join,
)
def test_a_project_that_is_named_from_elsewhere_is_refused(
    words: tuple[str, ...],
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)
    (tmp_path / "train.py").write_text("print(1)\n")
    named = [word.format(project=project, link=link) for word in words]

    code, done = run(*named, folder=tmp_path, below=project, monkeypatch=monkeypatch)

    assert (code, done) == (2, [])
    assert REFUSAL in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["composesim.yaml", "pyproject.toml", ".env", "settings.env", "train.py", ".composesim", "scripts"]
)
@pytest.mark.parametrize("kind", ["theirs", "a link of theirs", "a link to theirs"])
def test_a_part_that_belongs_to_another_user_counts(
    name: str,
    kind: str,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a folder of root, such as one that all can write to."""
    texts = {
        "composesim.yaml": "env_file: [settings.env]\nscript: train.py\n",
        "pyproject.toml": "[tool.composesim]\nnodes: 1\n",
        "train.py": "",
    }
    texts |= dict.fromkeys((".env", "settings.env"), "A=1\n")
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    for folder in (".composesim", "scripts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / "train.py").touch()
    part = tmp_path / name
    if kind != "theirs":
        target = (tmp_path if kind == "a link of theirs" else project) / f"target-{name}"
        part.rename(target) if target.parent == tmp_path else subprocess.run(["mv", part, target], check=True)
        part.symlink_to(target)
    os.chown(part, OWNER, OWNER, follow_symlinks=kind == "a link to theirs")

    words = ("plan", "scripts/train.py") if name == "scripts" else ("plan",)
    code, _ = run(*words, folder=tmp_path, below=tmp_path, monkeypatch=monkeypatch)

    assert code == 2
    assert f"{REFUSAL} '{part}'" in capsys.readouterr().err


@pytest.mark.parametrize("words", offered(ANYWHERE), ids=" ".join)
def test_help_works_in_every_project(
    words: tuple[str, ...], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, done = run(*words, folder=project, below=project, monkeypatch=monkeypatch)

    assert (code, done) == (0, [])
    assert capsys.readouterr().out


def test_python_is_refused_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)

    for call in (
        lambda: api.run("train.py", engine="local"),
        lambda: api.run(print, engine="local"),
        lambda: api.check("train.py", engine="local"),
    ):
        with pytest.raises(SpecError, match=REFUSAL):
            call()


def test_tests_on_ranks_are_refused_before_the_first(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import pytest\n@pytest.mark.composesim(nodes=2)\ndef test_it(): pass\ndef test_other(): pass\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=project, capture_output=True, text=True
    )

    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert (REFUSAL in done.stderr, HINT in done.stderr) == (True, True)
    assert [path.name for path in (project / RUN).parent.iterdir()] == ["demo"]


def test_labels_of_processes_that_others_started_lead_to_no_run(tmp_path: Path, project: Path) -> None:
    """Anybody can start a process with the variables of a node, also one whose folder belongs to that user."""
    (tmp_path / "train.py").touch()
    words = ("--engine", "local", "--launcher", "env", "--nodes", "1", "--name", "precious")
    composesim(tmp_path, "up", *words, "train.py", check=0)
    run_folder = tmp_path / ".composesim" / "runs" / "precious"
    planted = []
    try:
        for folder in (run_folder, project / RUN):
            labels = {"ENGINE": "local", "RUN": folder.name, "NODE": "node-0", "DIR": str(folder)}
            environment = {f"COMPOSESIM_{name}": value for name, value in labels.items()}
            planted.append(
                subprocess.Popen(["sleep", "600"], env={**os.environ, **environment}, user=OWNER, group=OWNER)
            )
        composesim(tmp_path, "down", "--purge", check=2)
        listed = composesim(tmp_path, "ps", check=0).stdout
        composesim(tmp_path, "exec", "--run", "demo", "node-0", "--", "id", check=2)
        composesim(tmp_path, "up", *words, "train.py", check=0)
    finally:
        for each in planted:
            each.kill()
            each.wait()

    assert "precious" not in listed
    assert "demo" not in listed
    assert (run_folder / "report.json").is_file()


@pytest.mark.parametrize("way", ["--trust-project", TRUST, "SUDO_UID"])
def test_a_trusted_project_is_treated_as_one_of_root(way: str, project: Path, tmp_path: Path) -> None:
    for name in ("composesim.yaml", ".env", "settings.env"):
        (project / name).unlink()
    options = (way,) if way.startswith("-") else ()
    variables = {} if options else {way: str(OWNER) if way == "SUDO_UID" else "1"}
    name = f"trusted-{secrets.token_hex(3)}"
    words = (*UP, "--nodes", "1", "--name", name, "--", "sh", "-c", "echo user $(id -u) $HOME")

    done = composesim(project, *options, *words, check=0, HOME=str(tmp_path), **variables)
    report = composesim(project, *options, "report", "--run", name, check=0, **variables)
    refused = composesim(project, "report", "--run", name, check=2)

    assert f"user 0 {tmp_path}" in done.stdout
    assert "passed" in report.stdout
    assert REFUSAL in refused.stdout
    made = project / ".composesim" / "runs" / name
    assert {path.lstat().st_uid for path in (made, *made.rglob("*"))} == {0}


@pytest.mark.train
def test_a_function_runs_in_a_trusted_project(project: Path) -> None:
    for name in ("composesim.yaml", ".env", "settings.env"):
        (project / name).unlink()
    script = "import os, composesim\nprint(composesim.run(os.getuid, nodes=1, nproc_per_node=1, engine='local'))\n"
    environment = {**os.environ, TRUST: "1"}

    done = subprocess.run([sys.executable, "-c", script], cwd=project, env=environment, capture_output=True, text=True)

    assert done.stdout == "[0]\n", done.stderr
