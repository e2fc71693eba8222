"""What a user gets for a typo, for another launcher's spelling, or for an input that cannot work: the reason and the way out."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from compose_sim.cli import main
from compose_sim.cli.options import _RECIPE_FLAGS
from compose_sim.core.request.flags import OPTIONS
from compose_sim.plugins.registry import built_in
from tests.builders import PATIENCE_S
from tests.cli.conftest import COMMAND, UP, Project

Typed = Callable[..., tuple[int, str]]
PLAN = ("plan", "--engine", "local")
MEANT = [
    (("upp", "train.py"), 2, "Did you mean 'up'?"),
    (("chek", "train.py"), 2, "Did you mean 'check'?"),
    (("fault", "kil", "node-0"), 2, "did you mean 'kill'?"),
    (("run", "train.py"), 2, "Did you mean 'up'?"),
    (("stop",), 2, "Did you mean 'down'?"),
    (("up", "--batch-size", "4", "train.py"), 2, "Options of train.py go after it"),
    ((*PLAN, "train.py", "--node", "4"), 0, "options of composesim go before it"),
    (("explain", "set-epoch"), 2, "Try: composesim check --explain set-epoch"),
    (("up", "--node", "4", "train.py"), 2, "Did you mean '--nodes'?"),
    (("up", "-n", "4", "train.py"), 2, "Did you mean '--nodes'?"),
    (("scale", "--jsn", "3"), 2, "Did you mean '--json'?"),
    (("scale", "3", "demo"), 2, "Did you mean '--run demo'?"),
    (("down", "demo"), 2, "there is no run 'demo'"),
    (("logs", "demo"), 2, "there is no run 'demo'"),
    (("logs", "one", "--run", "two"), 2, "two runs are named: 'one' and 'two'"),
    ((*PLAN, "torchrun", "--nproc-per-node", "2", "train.py"), 2, "Try: composesim up --nproc-per-node 2 train.py"),
    ((*PLAN, "python3", "train.py", "--lr", "1"), 2, "Try: composesim up train.py --lr 1"),
    ((*PLAN, "python", "-m", "package.train"), 2, "Try: composesim up -m package.train"),
    ((*PLAN, "accelerate", "launch", "train.py"), 2, "Try: composesim up train.py"),
    ((*PLAN, "mpirun", "-np", "4", "train.py"), 2, "'mpirun' starts ranks, and so does composesim: leave it out"),
    ((*PLAN, "--mount", ".:/usr", "train.py"), 2, "would hide '/usr'"),
    ((*PLAN, "--mount", ".:/proc/self", "train.py"), 2, "would hide '/proc/self'"),
    ((*PLAN, "--env", "RANK=3", "--env", "LR=1", "train.py"), 0, "--env RANK: no effect"),
    ((*PLAN, "--hang-timeout", "0", "train.py"), 2, "more than 0, or never"),
    (("ps", "demo"), 2, "Got unexpected extra argument (demo)."),
    (("up", "--standalone", "train.py"), 2, "composesim itself is the rendezvous"),
    (("up", "--nnodes", "1:4", "train.py"), 2, "elastic takes a range"),
    ((*PLAN, "trian.py"), 2, "Try: composesim up train.py"),
    ((*PLAN, "train.py --epochs 3"), 2, "Try: composesim up train.py --epochs 3"),
    ((*PLAN, "train.py:main"), 2, "Try: composesim up train.py"),
    ((*PLAN, "nested.py"), 2, "'nested.py' is not Python source: it is nested too deeply"),
    ((*PLAN, "spec.yaml"), 2, "Try: composesim up -f spec.yaml"),
    ((*PLAN, "null.py"), 2, "'null.py' is not Python source: it contains null bytes"),
    ((*PLAN, "--", "-dash.py"), 2, "Try: composesim up ./-dash.py"),
    ((*PLAN, "--", "train.py"), 2, "Try: composesim up train.py"),
    ((*PLAN, "-f", "unquoted.yaml"), 2, 'Try: "${HOME}" with quotes'),
    ((*PLAN, "--name", "My Run", "train.py"), 2, "such as 'my-run'"),
    ((*PLAN, "--recipe", "pytorch", "train.py"), 2, "did you mean 'ddp'?"),
    ((*PLAN, "--recipe", "exce", "train.py"), 2, "did you mean 'exec'?"),
    ((*PLAN, "bin.py"), 2, "there is: has_fields.py"),
    ((*PLAN, "/dev/null"), 2, "Try: composesim up - reads it from standard input"),
    (("completion", "bsh"), 2, "there is no 'bsh'; did you mean 'bash'?"),
    (("completion", "powershell"), 2, "there are bash, zsh, fish"),
    (("scale", "-1"), 2, "A number must be at least 1."),
]
# Values that no run can have, each with a part of what quotes it.
REFUSED = [
    (("--nodes=2,3",), "'2,3' is not a number of nodes"),
    (("--nodes", "1e1"), "'1e1' is not a number of nodes"),
    (("--cpus", "-1"), "'-1' is too small"),
    (("--cpus", "64"), "leave --cpus out"),
    (("--timeout", "0s"), "'0s' is too small"),
    (("--timeout", "-5m"), "write it like 90s"),
    (("--timeout", "1h30"), "'1h30' is not a duration"),
    (("--mount", "nowhere:/data"), "Try: mkdir -p "),
    (("--mount", ".:relative"), "must be an absolute path"),
    (("--publish", "jupyter=99999"), "at most 65535"),
    (("--elastic", "2"), "such as 2:4"),
    (("--elastic", "0:2"), "'0:2' is not MIN:MAX nodes"),
    (("--link", "10mbit"), "leave --link out"),
    (("--link", "loss=150%"), "below 100%"),
    (("--gpus-per-node", "0"), "at least 1"),
    (("--launcher", "mpirun"), "is not one of warm, torchrun, env"),
    (("--max-restarts", "-1"), "at least 0"),
    (("--master-port", "80"), "at least 1024"),
    (("--master-port", "70000"), "at most 65535"),
    (("--user", "nosuchuser"), "no user 'nosuchuser'"),
    (("--name", "Ünï"), "'Ünï' is not a run name"),
    (("--name", "-"), "'-' is not a run name"),
    (("-f", "train.py"), "train.py, line 1: a spec is a mapping"),
    (("--env", "A B=1"), "'A B' is not a valid name"),
]
SETTINGS = [
    ("composesim.yaml", "engine: Local", "Try: engine: local"),
    ("composesim.yaml", "engine: no", "'no' is not one of auto, docker"),
    ("composesim.yaml", "nodes: [1, 2]", "and on line 1: nodes: '2' is not a mapping"),
    ("composesim.yaml", "env: [A=1]", 'Try: env: {NAME: "value"}'),
    ("composesim.yaml", "link: fast", "'fast' is not part of a link"),
    ("composesim.yaml", "nodes: a\ncpus: b\ngpus: c\nenv: d\ntimeout: e", "and on line 5: timeout: 'e'"),
    ("pyproject.toml", "[tool.composesim]\nscrpt = 'a'", "line 2: unknown key 'scrpt'; did you mean 'script'?"),
    ("pyproject.toml", "[tool.composesim]\nscrpt = 'a'", 'Try: script = "a"'),
    ("pyproject.toml", "[tool.composesim]\nenv = ['A=1']", 'Try: env = {NAME = "value"}'),
]
# What a user types in a folder that has files of these names already.
IN_A_FOLDER_WITH_FILES = [
    ("init",),
    ("init", "--vscode"),
    ("init", "."),
    ("skill",),
    ("image", "build"),
    ("render", "."),
]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Type a command in a folder with some files; return the exit code and all that is printed."""
    (tmp_path / "train.py").write_text("print('hi')\n")
    (tmp_path / "takes_nodes.py").write_text("parser.add_argument('--nodes')\n")
    (tmp_path / "has_fields.py").write_text(
        "# memory is scarce here, and cpus are not\nclass C:\n    nodes: int\n    hang_timeout = 1\n"
    )
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "nested.py").write_text(f"{'-' * 100_000}1\n")
    (tmp_path / "spec.yaml").write_text("script: train.py\n")
    (tmp_path / "unquoted.yaml").write_text("script: train.py\nenv: {A: ${HOME}}\n")
    monkeypatch.chdir(tmp_path)

    def type_command(*words: str, stdin: str = "") -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["composesim", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            main()
            status = 0
        except SystemExit as left:
            status = int(left.code or 0)
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return type_command


@pytest.mark.parametrize(
    ("words", "status", "answer"), MEANT, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_the_answer_names_what_was_meant(typed: Typed, words: tuple[str, ...], status: int, answer: str) -> None:
    left, printed = typed(*words)

    assert (left, answer in printed) == (status, True), printed


@pytest.mark.parametrize(("words", "answer"), REFUSED, ids=lambda value: " ".join(value) * isinstance(value, tuple))
def test_a_value_that_no_run_can_have_is_refused_and_quoted(typed: Typed, words: tuple[str, ...], answer: str) -> None:
    status, printed = typed(*PLAN, *words, "train.py")

    assert (status, printed.count("Error: "), answer in printed) == (2, 1, True), printed


@pytest.mark.parametrize(("name", "text", "answer"), SETTINGS)
def test_a_wrong_setting_is_quoted_with_its_line(typed: Typed, name: str, text: str, answer: str) -> None:
    Path(name).write_text(text + "\n")
    status, printed = typed("plan", "train.py")

    assert (status, answer in printed) == (2, True), printed


@pytest.mark.train
def test_no_command_that_an_error_suggests_changes_a_file_of_the_user(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "composesim.yaml").write_text("engine: local\nlauncher: env\nnodes: 1\n")
    for name in ("Dockerfile", "docker-compose.yml", "SKILL.md", ".gitignore", "composesim.yaml.bak"):
        (tmp_path / name).write_text("mine\n")
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "launch.json").write_text("{}\n")
    mine = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    printed = [typed(*words)[1] for words in (*(words for words, *_ in MEANT), *IN_A_FOLDER_WITH_FILES)]
    suggested = {
        found
        for text in printed
        for found in re.findall(r"Try: (composesim [^…\n]+?)(?:,| reads | writes |$)", text, re.M)
    }

    assert len(suggested) > 10
    for command in suggested:
        words = shlex.split(command)[1:]
        subprocess.run([*COMMAND, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S)
        changed = [path for path, content in mine.items() if not path.exists() or path.read_bytes() != content]
        assert changed == [], command


def test_a_settings_file_of_another_name_is_refused_unless_the_right_one_is_there(typed: Typed) -> None:
    Path("composesim.yml").write_text("nodes: 1\n")

    status, printed = typed(*PLAN, "train.py")
    assert (status, "Try: mv composesim.yml composesim.yaml" in printed) == (2, True)

    Path("composesim.yaml").write_text("nodes: 3\n")
    status, printed = typed(*PLAN, "train.py")
    assert (status, "node-2" in printed) == (0, True)


def test_the_spellings_of_torchrun_are_accepted(typed: Typed) -> None:
    status, printed = typed(*PLAN, "--nnodes", "3", "--nproc_per_node=2", "--max_restarts", "1", "train.py")

    assert status == 0
    assert "node-2  4, 5" in printed


@pytest.mark.parametrize(
    ("script", "words", "remark"),
    [
        ("train.py", ("--nodes", "4", "--lr=1"), "--nodes: passed to train.py"),
        ("train.py", ("--nproc_per_node=4",), "--nproc_per_node=4: passed to train.py"),
        ("train.py", ("--epochs", "4"), ""),
        ("takes_nodes.py", ("--nodes", "4"), ""),
        ("has_fields.py", ("--nodes", "4", "--hang-timeout=9"), ""),
        ("has_fields.py", ("--memory", "a", "--cpus=b"), "--memory, --cpus=b: passed to has_fields.py"),
    ],
)
def test_an_option_after_the_script_that_the_script_does_not_know_draws_a_remark(
    typed: Typed, script: str, words: tuple[str, ...], remark: str
) -> None:
    status, printed = typed(*PLAN, script, *words)

    assert status == 0
    assert remark in printed if remark else "passed to" not in printed


def test_a_dash_reads_the_script_from_stdin(typed: Typed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    refused = typed(*PLAN, "-", "--epochs", "2", stdin="print(")[1].splitlines()
    assert refused[0].startswith("Error: the script '<stdin>' is not valid Python")
    assert refused[1:] == ["  <stdin>, line 1: print("]
    assert "larger than 4 MiB" in typed(*PLAN, "-", stdin="#" * (5 << 20))[1]
    status, printed = typed(*PLAN, "-", "--epochs", "2", stdin="print(1)")

    assert status == 0
    assert "program   <stdin> --epochs 2\n" in printed
    assert list(temporary.iterdir()) == [], "it is deleted when the command ends"


def test_a_script_from_stdin_is_shown_as_such(project: Project) -> None:
    ended = project.run(*UP, "--nodes", "1", "-", "--epochs", "2", stdin="1 / 0\n")
    (listed,) = (line for line in project.run("ps", "--all").stdout.splitlines() if str(project.folder) in line)

    report = ended.stderr.partition("timings")[2]
    assert '    File "<stdin>", line 1, in <module>\n' in report
    assert "/composesim-" not in report
    assert " <stdin> --epochs 2 " in listed


@pytest.mark.parametrize("words", [(), ("up",), ("fault", "kill"), ("fault",)])
def test_help_of_a_verb_is_that_of_its_option(typed: Typed, words: tuple[str, ...]) -> None:
    assert typed("help", *words) == typed(*words, "--help")
    assert typed("help", *words)[0] == 0


def test_help_lists_the_options_of_a_recipe_only_for_that_recipe(typed: Typed) -> None:
    plain = typed("up", "--help")[1]

    for flag in _RECIPE_FLAGS.values():
        assert f"--{flag.name}" in typed("up", "--recipe", flag.recipe, "--help")[1]
        assert f"--{flag.name}" not in plain
    headings = [line for line in plain.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Cluster:",
        "GPUs:",
        "Network:",
        "Image and files:",
        "Run:",
        "Recipe:",
        *(f"{name.title()} (--engine {name}):" for name in built_in(OPTIONS)),
    ]


@pytest.mark.parametrize("package", ["click", "pydantic"])
def test_a_missing_dependency_is_named_with_the_command_that_installs_it(package: str, tmp_path: Path) -> None:
    words = f"import sys; sys.modules['{package}'] = None; sys.argv = ['composesim', 'plan', 'x.py']; "
    ended = subprocess.run(
        [sys.executable, "-c", f"{words}from compose_sim.__main__ import main; main()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    message, command = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (4, "")
    assert f"'{package}'" in message
    assert command.startswith(f"Try: {sys.executable} -m pip install ")
    assert package in command
