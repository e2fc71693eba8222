"""The GitHub action and the pre-commit hook run composesim as they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compose_sim.cli import VERBS
from tests.builders import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def run_step(name: str, folder: Path, inputs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does: inputs are filled into `env`, and bash stops at the first error."""
    given = {key: entry.get("default", "") for key, entry in ACTION["inputs"].items()} | inputs
    variables = {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], text)
        for key, text in STEPS[name].get("env", {}).items()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = str(folder / "summary.md")
    environment = {**os.environ, **variables, "PATH": path, "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": summary}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("status", "verdict"), [(0, "passed"), (3, "failed")])
def test_the_action_keeps_junit_and_page_and_has_the_status_of_the_run(
    tmp_path: Path, status: int, verdict: str
) -> None:
    (tmp_path / "train.py").write_text(f"import sys; sys.exit({status} if sys.argv[1:] == ['--epochs', '2'] else 9)\n")

    done = run_step(
        "Run",
        tmp_path,
        {"verb": "up", "script": "train.py --epochs 2", "options": "--engine local --launcher env --nodes 2"},
    )

    kept = tmp_path / str(STEPS["Keep the report"]["with"]["path"])
    assert done.returncode == bool(status), done.stderr
    assert {path.name for path in kept.iterdir()} == {"junit.xml", "run.html", "report.txt"}
    assert verdict in (kept / "run.html").read_text()
    assert "<testsuite" in (kept / "junit.xml").read_text()


def test_no_input_of_the_action_is_pasted_into_a_script() -> None:
    """The title of a pull request could otherwise be a command."""
    assert [step["name"] for step in STEPS.values() if "${{" in step.get("run", "")] == []


def test_the_documents_use_the_action_and_the_hook_as_they_are() -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    step, config = (
        yaml.safe_load(block)
        for block in re.findall(r"<!-- file: (?:github-action|pre-commit)-\S+ -->\n```yaml\n(.*?)```", text, re.S)
    )

    assert set(step[0]["with"]) <= set(ACTION["inputs"])
    assert [hook["id"] for hook in config["repos"][0]["hooks"]] == ["composesim-check"]


def test_the_hook_runs_a_verb_that_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, verb, *options = hook["entry"].split()

    assert (program, verb in VERBS, options) == ("composesim", True, ["--engine", "local"])
    assert not hook["pass_filenames"]
