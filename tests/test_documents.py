"""Documents show the real output of commands, links lead somewhere, and every page is short and can be found.

`<!-- run: NAME -->` before a code block writes the block to the file NAME. `<!-- run -->` before a block runs the commands in it
and compares what they print. `--update-golden` writes the new output into the document.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from statistics import median

import pytest
import yaml

from compose_sim.cli import VERBS
from compose_sim.cli.commands.cmd_check import command as check
from compose_sim.core.checks.run import BY_ID
from compose_sim.core.events.events import KINDS, READ_FROM_LOGS
from compose_sim.core.request.names import CHECK_IDS
from compose_sim.node.records import KINDS as RECORDS
from compose_sim.plugins.registry import ENGINES, built_in
from tests.builders import ROOT

DOCS = ROOT / "docs"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
PAGES = sorted((DOCS / "checks").glob("*.md"))
SECTIONS = ["What is wrong", "Why it matters", "How it is detected", "How to fix it", "False alarms"]
RECORD_MODULES = [
    f"compose_sim.node.records.{name}"
    for name in (
        *("script", "process_groups", "data", "models", "gradients", "precautions", "timings"),
        *("devices_and_files", "replays", "resumption"),
    )
]
MAX_WORDS = 900  # in five minutes
FIRST = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", DOCS / "tutorial.md"]
# `<!-- run with NAME -->` runs a block only if that plug-in is there.
_BLOCK = re.compile(
    r"<!-- run(?: with (?P<plugin>\w+))?(?:: (?P<file>[\w.]+))? -->\n```\w*\n(?P<text>.*?)```\n", re.DOTALL
)
_COMMAND = re.compile(r"^\$ (.*)", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
_PATH = re.compile(r"`((?:compose_sim|core|engine|app|cli|node|tests|templates|docs|bench|scripts)/[\w./-]+)`")
_PLUGIN = re.compile(r"(?:compose_sim|docs|tests)/plugins/([a-z_]+)\b")


def _engine_of(page: Path) -> str:
    return page.parent.name if page.parent.name in built_in(ENGINES) else "docker"


def _marks(page: Path) -> tuple[pytest.MarkDecorator, ...]:
    """Return what the commands of a page need; a page whose commands start no ranks is among the fast tests."""
    commands = _COMMAND.findall("".join(block["text"] for block in _BLOCK.finditer(page.read_text())))
    starts_ranks = not all(re.match("composesim (export|plan|learn init) ", command) for command in commands)
    return (pytest.mark.train, getattr(pytest.mark, _engine_of(page))) if starts_ranks else ()


_RUN = [
    pytest.param(path, {}, id=path.name, marks=_marks(path)) for path in DOCUMENTS if _BLOCK.search(path.read_text())
]
_NO_DOCKER = {"DOCKER_HOST": "unix:///nowhere"}
_WITHOUT_DOCKER = pytest.param(
    DOCS / "tutorial.md", _NO_DOCKER, id="tutorial.md without Docker", marks=pytest.mark.train
)


@pytest.mark.parametrize(("document", "variables"), [*_RUN, _WITHOUT_DOCKER])
def test_commands_print_what_the_document_shows(
    document: Path, variables: dict[str, str], tmp_path: Path, update_golden: bool, request: pytest.FixtureRequest
) -> None:
    if (engine := _engine_of(document)) != "docker":
        request.getfixturevalue(f"{engine}_cluster")
    for name in ("train_ddp.py", "data"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    text, own = document.read_text(), f"-{secrets.token_hex(3)}"  # run names hold for the machine, not for a checkout
    for block in list(_BLOCK.finditer(text)):
        if block["plugin"] and not (ROOT / "compose_sim" / "plugins" / block["plugin"]).is_dir():
            continue
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"])
            continue
        printed = _run(block["text"], tmp_path, variables, own)
        if update_golden:
            text = text.replace(block["text"], printed)
        else:
            assert _without_figures(printed) == _without_figures(block["text"])
    if update_golden:
        document.write_text(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_a_file_and_a_heading(document: Path) -> None:
    broken = []
    for target, heading in _LINK.findall(_CODE.sub("", document.read_text())):
        path = document.parent / target if target else document
        if is_of_a_missing_plugin(path.resolve()):
            continue
        if not path.exists() or (heading and heading not in _anchors(path)):
            broken.append(f"{target}#{heading}")

    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    named = {path for path in _PATH.findall(document.read_text()) if not re.search(r"[A-Z]{2}", path)}

    missing = {path for path in named if not ((ROOT / path).exists() or (ROOT / "compose_sim" / path).exists())}

    assert [path for path in missing if not is_of_a_missing_plugin(ROOT / path)] == []


def is_of_a_missing_plugin(path: Path) -> bool:
    """Return whether a path belongs to a plug-in that was deleted (`make without`): pages of the rest still mention it."""
    found = _PLUGIN.search(path.as_posix())
    return bool(found) and not (ROOT / "compose_sim" / "plugins" / str(found and found[1])).is_dir()


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {(page.parent / target).resolve() for target, _ in _LINK.findall(page.read_text()) if target}
        targets = {target for target in targets if not is_of_a_missing_plugin(target)}
        waiting += {path for path in targets - reached if path.suffix == ".md" and path.is_relative_to(DOCS)}

    assert set(DOCS.rglob("*.md")) - reached == set()


@pytest.mark.parametrize("document", FIRST, ids=lambda path: path.name)
def test_what_a_newcomer_reads_first_is_short(document: Path) -> None:
    assert len(document.read_text().split()) <= MAX_WORDS


def test_every_command_is_in_the_documents() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS if path.parent.name != "checks")

    assert [verb for verb in VERBS if not re.search(rf"composesim {verb}\b", text)] == []


def test_the_scenario_that_is_shown_is_the_one_that_ships() -> None:
    shipped = (ROOT / "templates" / "scenarios" / "node-0-loss.yaml").read_text()
    lines = [line for line in shipped.splitlines(keepends=True) if not line.startswith("#")]

    assert f"```yaml\n{''.join(lines)}```\n" in (DOCS / "scenarios.md").read_text()


def test_every_kind_of_event_is_described() -> None:
    listed = re.findall(r"^\| (`.*?) \|", (DOCS / "events.md").read_text(), re.MULTILINE)

    assert set(re.findall(r"`([a-z-]+)`", " ".join(listed))) == KINDS - READ_FROM_LOGS


def test_every_check_has_a_page_and_every_page_a_check() -> None:
    assert sorted(path.stem for path in PAGES) == sorted(CHECK_IDS)
    listed = re.findall(r"^\| \[`([a-z-]+)`\]\(checks/\1\.md\)", (DOCS / "checks.md").read_text(), re.MULTILINE)
    assert tuple(listed) == CHECK_IDS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_says_the_same_things_as_the_others(page: Path) -> None:
    """Each page has what, why, how it is detected, the code to write and false alarms, on one screen."""
    text = page.read_text()

    assert text.startswith(f"# {page.stem}\n\n**{BY_ID[page.stem].question}** ")
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == SECTIONS
    assert "```python\n" in text
    assert len(text.splitlines()) <= 45


def test_every_record_is_described_with_its_fields(update_golden: bool) -> None:
    """The tables are made from the record types; `--update-golden` writes them into the page."""
    page = DOCS / "observations.md"
    head = page.read_text().partition("\n## ")[0]
    tables = "".join(f"\n## {title}\n\n{table}" for title, table in _record_tables().items())
    if update_golden:
        page.write_text(f"{head}{tables}")

    assert page.read_text() == f"{head}{tables}"


def _record_tables() -> dict[str, str]:
    tables: dict[str, str] = {}
    for kind, record in sorted(RECORDS.items(), key=lambda item: RECORD_MODULES.index(item[1].__module__)):
        title = str(sys.modules[record.__module__].__doc__).rstrip(".")
        own = ", ".join(f"`{each.name}`" for each in fields(record) if each.init)
        tables.setdefault(title, "| Kind | Written when | Fields |\n|---|---|---|\n")
        tables[title] += f"| `{kind}` | {str(record.__doc__).strip().rstrip('.')} | {own} |\n"
    return tables


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_job_to_copy_is_valid_yaml_and_runs_words_that_there_are(name: str) -> None:
    text = (DOCS / "ci.md").read_text()
    block = re.search(rf"<!-- file: {name} -->\n```yaml\n(.*?)```\n", text, re.DOTALL)
    assert block
    job = json.dumps(yaml.safe_load(block[1]))
    words = set(re.findall(r"composesim check (--.*?) train.py", job)[0].split())

    assert {word for word in words if word.startswith("--")} <= {
        name for option in check.params for name in option.opts
    }
    assert "--composesim-engine" in job


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub creates them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub(lambda code: code[0].strip("`"), page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _run(block: str, folder: Path, variables: dict[str, str], own: str) -> str:
    """Return the block with the present output of its commands, stdout and stderr; `own` is added to names of runs."""
    environment = {**os.environ, **variables, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("CI", None)  # in CI, pytest does not shorten long lines
    printed = ""
    for line in block.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                ["bash", "-c", re.sub(r"(--name|--run|report) ([a-z]+)", rf"\1 \2{own}", line[2:])],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            printed += f"{line}\n{done.stdout}"
    for named, plain in (
        (own, ""),
        (str(Path(sys.executable).parent), "~/venv/bin"),
        ("bin/python3", "bin/python"),
        (f"{folder}/", ""),
        (f"host {os.uname().nodename}", "host pc"),
    ):
        printed = printed.replace(named, plain)
    return printed


def _without_figures(text: str) -> list[str]:
    """Return the lines with figures and alignment replaced, so that two runs compare equal."""
    plain = re.sub(r"\([0-9a-f]{12}\)|fault-[0-9a-f]{6}", "#", re.sub(r"\+(cpu|cu\d+)\b", "", text))
    plain = re.sub(r"\d[\d.]*( [KMG]iB| B)?", "#", plain).replace("# min # s", "# s")
    plain = plain.replace(" (#:#:#)", "")  # of pytest, after more than a minute
    lines = [" ".join(line.split()) for line in plain.splitlines()]
    return [line for line in lines if not line.startswith("after # s, waiting for")]  # on a busy machine


def test_figures_in_documents_are_those_of_the_last_measurement() -> None:
    results = json.loads((ROOT / "bench" / "results.json").read_text())["rows"]
    seconds = {
        name: median(contestant["seconds"])
        for key in ("1", "2")
        for name, contestant in results[key]["contestants"].items()
    }
    read_me = (ROOT / "README.md").read_text()
    shown = re.findall(r"^\| (?:composesim|four|TorchX|Kubeflow).*?\| ([\d.]+) \|$", read_me, re.MULTILINE)
    names = (
        "composesim up, local",
        "composesim up, docker",
        "4 × torchrun",
        "TorchX local_docker",
        "Kubeflow SDK containers",
    )
    assert shown == [f"{seconds[name]:.1f}" for name in names]

    runs = json.loads((ROOT / "bench" / "gpu.json").read_text())["runs"]
    sharing = (ROOT / "docs" / "gpu-sharing.md").read_text()
    for count, kind, shown in re.findall(
        r"^\| (\d+) (containers|bare processes) with MPS \| ([\d.]+) ms", sharing, re.MULTILINE
    ):
        step = median(each["step_ms"] for each in runs[f"{count} {kind}, MPS"])
        assert float(shown) == round(step, 0 if step >= 10 else 1)
