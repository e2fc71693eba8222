"""The GitHub action and the pre-commit hook run composesim as they say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compose_sim.cli import VERBS
from tests.builders import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # as GitHub runs a step


def variables_of(name: str, folder: str, inputs: dict[str, str]) -> dict[str, str]:
    """Return the variables that GitHub gives a step: inputs are filled into `env`."""
    given = {key: entry.get("default", "") for key, entry in ACTION["inputs"].items()} | inputs
    variables = {
        key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], text)
        for key, text in STEPS[name].get("env", {}).items()
    }
    files = {"GITHUB_STEP_SUMMARY": f"{folder}/summary.md", "GITHUB_OUTPUT": f"{folder}/output"}
    return {**variables, "GITHUB_ACTIONS": "true", **files}


def run_step(name: str, folder: Path, inputs: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a step on this machine, with this environment's composesim."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables_of(name, str(folder), inputs), **more}
    return subprocess.run([*BASH, STEPS[name]["run"]], cwd=folder, env=environment, capture_output=True, text=True)


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


def test_the_action_caches_what_pip_downloads_for_these_dependencies(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def named() -> dict[str, str]:
        (tmp_path / "output").unlink(missing_ok=True)
        done = run_step("Name the cache", tmp_path, {}, GITHUB_ACTION_PATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())

    before = named()
    (tmp_path / "pyproject.toml").write_text("another")

    pip = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    assert before["path"] == pip.stdout.strip()
    assert named()["key"] != before["key"]
    assert re.findall(r"steps\.cache\.outputs\.(\w+)", str(STEPS["Restore the cache"]["with"])) == ["key", "path"]


@pytest.mark.docker
def test_the_action_installs_composesim_and_checks_a_script_in_a_container(tmp_path: Path) -> None:
    """The job's container has a Python with torch and no network: what pip would download is in this environment already."""
    site = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text((ROOT / "train_ddp.py").read_text())
    shutil.copytree(ROOT / "data", job / "data")
    with_torch = f"{sys.base_prefix}/bin/python3 -m venv /env && echo {site} > $(echo /env/lib/python3.*)/site-packages/torch.pth"
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "GITHUB_ACTION_PATH": "/action"}
    path = "/env/bin:/usr/bin:/bin"
    steps = [
        {**offline, "PATH": path, **variables_of(name, "/job", {"script": "train.py --epochs 2"}), "STEP": step["run"]}
        for name, step in STEPS.items()
        if "run" in step
    ]
    runs = (
        f"env {shlex.join(f'{key}={text}' for key, text in step.items())} {shlex.join(BASH)} {shlex.quote(step['STEP'])}"
        for step in steps
    )
    mounts = [f"{job}:/job", f"{ROOT}:/action:ro", f"{sys.base_prefix}:{sys.base_prefix}:ro", f"{site}:{site}:ro"]
    flags = [
        "--rm",
        "--network",
        "none",
        "--workdir",
        "/job",
        *(word for mount in mounts for word in ("--volume", mount)),
    ]

    done = subprocess.run(
        ["docker", "run", *flags, "composesim-test-base:1", *BASH, "\n".join((with_torch, *runs))],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (job / "composesim-report").iterdir()} == {"junit.xml", "run.html", "report.txt"}
    assert "set-epoch" in (job / "summary.md").read_text()


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


def test_only_the_job_that_publishes_gets_a_token_of_the_package_index() -> None:
    """There is no password, and no job can write more than it must."""
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())

    assert release["permissions"] == {}
    assert {name: job["permissions"] for name, job in release["jobs"].items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
        "announce": {"contents": "write"},
    }
    scripts = [step.get("run", "") for job in release["jobs"].values() for step in job["steps"]]
    assert [script for script in scripts if "${{" in script or "secrets." in script] == []


def test_a_tag_that_is_not_signed_or_of_another_version_is_not_released(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "compose_sim").mkdir()
    (tmp_path / "compose_sim/version.py").write_text('__version__ = "1.2.3"\n')

    def release(tag: str, changes: str) -> str:
        (tmp_path / "CHANGELOG.md").write_text(changes)
        environment = {name: value for name, value in os.environ.items() if name != "GITHUB_REPOSITORY"}
        words = [tmp_path / "scripts/release.sh", tag]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr

    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    section = "# Changelog\n\n## [1.2.3]\n\n- What is new\n\n## [1.2.2]\n\n- Old\n"
    assert "the tag is v1.2.4" in release("v1.2.4", section)
    assert "no section '## [1.2.3]'" in release("v1.2.3", "## [1.2.2]\n\n- Old\n")
    assert "is not signed" in release("v1.2.3", section)
    assert (tmp_path / "build/release/notes.md").read_text() == "\n- What is new\n\n"


def test_the_component_of_gitlab_uses_its_inputs_as_variables() -> None:
    """An input that is pasted into a script could be a command."""
    spec, jobs = yaml.safe_load_all((ROOT / "templates/ci/gitlab-component.yml").read_text())
    (job,) = jobs.values()

    assert [line for line in (*job["script"], *job["after_script"]) if "$[[" in line] == []
    used = set(re.findall(r"\$\[\[ inputs\.(\w+) \]\]", yaml.safe_dump(jobs)))
    assert used == set(spec["spec"]["inputs"])


def test_the_hook_runs_a_verb_that_there_is() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, verb, *options = hook["entry"].split()

    assert (program, verb in VERBS, options) == ("composesim", True, ["--engine", "local"])
    assert not hook["pass_filenames"]
