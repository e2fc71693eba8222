"""Everything printed in a document is what the command prints: each block under `<!-- run -->` is run here.

`<!-- run: NAME -->` before a code block writes it to the file NAME first. `--update-golden` puts the new output in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compose_sim.cli.commands.cmd_check import command as check
from compose_sim.core.checks import question
from compose_sim.core.request.check_ids import IDS
from tests.builders import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = sorted((ROOT / "docs" / "checks").glob("*.md"))
SECTIONS = ["What is wrong", "Why it matters", "How it is seen", "How to fix it", "When it may be wrong itself"]
_BLOCK = re.compile(r"<!-- run(?:: (?P<file>[\w.]+))? -->\n```\w*\n(?P<text>.*?)```\n", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.docker
@pytest.mark.train
@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if _BLOCK.search(path.read_text())], ids=lambda path: path.name
)
def test_blocks_print_what_they_say(document: Path, tmp_path: Path, update_golden: bool) -> None:
    for name in ("train_ddp.py", "data"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    text = document.read_text()
    for block in list(_BLOCK.finditer(text)):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"])
            continue
        printed = _run(block["text"], tmp_path)
        if update_golden:
            text = text.replace(block["text"], printed)
        else:
            assert _without_figures(printed) == _without_figures(block["text"])
    if update_golden:
        document.write_text(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    broken = [target for target in _LINK.findall(document.read_text()) if not (document.parent / target).exists()]

    assert broken == []


def test_every_verb_is_in_the_readme() -> None:
    from compose_sim.cli import VERBS

    text = (ROOT / "README.md").read_text()

    assert [verb for verb in VERBS if not re.search(rf"\b{verb}\b", text)] == ["completion"]


def test_every_check_has_a_page_and_every_page_a_check() -> None:
    assert sorted(path.stem for path in PAGES) == sorted(IDS)
    listed = re.findall(r"^\| \[`([a-z-]+)`\]\(checks/\1\.md\)", (ROOT / "docs" / "check.md").read_text(), re.MULTILINE)
    assert tuple(listed) == IDS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_says_the_same_things_as_the_others(page: Path) -> None:
    """What, why, how it is seen, the code to write and when it may be wrong, on one screen."""
    text = page.read_text()

    assert text.startswith(f"# {page.stem}\n\n**{question(page.stem)}** ")
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == SECTIONS
    assert "```python\n" in text
    assert len(text.splitlines()) <= 45


def test_every_kind_of_observation_is_written_down() -> None:
    """Those that stand in the code as a word; a kind that a variable holds is not found."""
    sources = "".join(path.read_text() for path in (ROOT / "compose_sim" / "node").rglob("*.py"))
    noted = set(re.findall(r"\bnote\(\s*\"([a-z-]+)\"", sources))
    listed = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "observations.md").read_text(), re.MULTILINE)

    assert noted <= set(re.findall(r"`([a-z-]+)`", " ".join(listed)))


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_a_job_to_copy_is_valid_yaml_and_runs_words_that_there_are(name: str) -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    block = re.search(rf"<!-- file: {name} -->\n```yaml\n(.*?)```\n", text, re.DOTALL)
    assert block
    job = json.dumps(yaml.safe_load(block[1]))
    words = set(re.findall(r"composesim check (--.*?) train.py", job)[0].split())

    assert {word for word in words if word.startswith("--")} <= {
        name for option in check.params for name in option.opts
    }
    assert "--composesim-engine" in job


def _run(block: str, folder: Path) -> str:
    """The block with what its commands print now, stdout and stderr as on a terminal."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("CI", None)  # where pytest does not shorten its lines
    printed = ""
    for line in block.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                ["bash", "-c", line[2:]],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            printed += f"{line}\n{done.stdout}"
    for named, plain in (
        (str(Path(sys.executable).parent), "~/venv/bin"),
        ("bin/python3", "bin/python"),
        (f"{folder}/", ""),
        (os.uname().nodename, "host"),
    ):
        printed = printed.replace(named, plain)
    return printed


def _without_figures(text: str) -> list[str]:
    """The lines with every figure, and every run of spaces that aligns them, made equal."""
    plain = re.sub(r"\([0-9a-f]{12}\)", "(#)", text)
    plain = re.sub(r"\d[\d.]*( [KMG]iB| B| min \d+ s)?", "#", plain)
    return [" ".join(line.split()) for line in plain.splitlines()]
