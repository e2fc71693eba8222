"""A check accepts every documented form of the command; output, files and exit code match the result."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import click
import pytest
import xmlschema

from compose_sim.cli.views.report import check_verdict, result_lines
from compose_sim.core.checks import Result, failed, not_applicable, passed, warned
from compose_sim.core.report.report import Cause, Coverage, Report, Timings
from compose_sim.core.request.names import CHECK_IDS
from tests import builders
from tests.builders import ROOT
from tests.cli.conftest import Project

# Bare processes: nothing imports torch.
CHECK = ("check", "--engine", "local", "--launcher", "env", "--nproc-per-node", "2")
QUIET = "import os\nprint(os.environ['RANK'], os.environ['LOCAL_RANK'])\n"
FAILING = "import os\nif os.environ['RANK'] == '3':\n    raise ValueError('boom')\n"
WRONG = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
"""


# Right where there is no GPU; with one, NCCL gets a tensor on the CPU.
SHARDS_WITHOUT_DEVICES = """import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = (model(torch.ones(4, 4)) - torch.full((4, 2), dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
WITHOUT_DEVICES = WRONG.replace('"gloo"', '"nccl" if torch.cuda.is_available() else "gloo"')


def a_report(*results: Result, verdict: str = "passed", coverage: Coverage | None = None) -> Report:
    cause = Cause(node="node-1", rank=2, kind="exception", message="ValueError: boom")
    return builders.a_report(
        verdict=verdict,
        coverage=coverage,
        cause=None if verdict == "passed" else cause,
        checks=tuple(replace(result, id=name).to_report() for name, result in zip(CHECK_IDS, results, strict=False)),
        world_size=4,
        timings=Timings(total_s=2.0),
    )


GOOD, BAD = passed("all agree"), failed("ranks differ", fix="wrap it", at=("/elsewhere/train.py", 3))
SHARDED = Coverage(gradients="sharded")
TWICE = Coverage(replicas="each rank holds a part", gradients="sharded")
SO_SO, ASIDE = warned("3 samples twice", fix="drop_last=True"), not_applicable("no BatchNorm")


def test_what_failed_or_warned_has_its_fix_place_and_page_below_it() -> None:
    lines = [
        click.unstyle(line) for result in a_report(GOOD, BAD, SO_SO, ASIDE).checks for line in result_lines(result, 20)
    ]

    assert lines == [
        "✔ hang                  all agree",
        "✘ collective-mismatch   ranks differ",
        "    fix: wrap it",
        "    at: /elsewhere/train.py:3",
        "    page: composesim check --explain collective-mismatch",
        "! rank-confusion        3 samples twice",
        "    fix: drop_last=True",
        "    page: composesim check --explain rank-confusion",
        "– host-dependence       not applicable: no BatchNorm",
    ]


@pytest.mark.parametrize(
    ("report", "line", "code"),
    [
        (a_report(GOOD, ASIDE), "✔ passed  1 passed, 1 not applicable; 4 ranks of train.py in 2.00 s", 0),
        (a_report(GOOD, GOOD, SO_SO), "! passed, but rank-confusion warned  2 passed, 1 warned; 4 ranks of train.py in 2.00 s", 0),
        (
            a_report(SO_SO, coverage=SHARDED),
            "! passed, but hang warned, gradients not judged: sharded  1 warned; 4 ranks of train.py in 2.00 s",
            0,
        ),
        (a_report(GOOD, coverage=SHARDED), "! passed, gradients not judged: sharded  1 passed; 4 ranks of train.py in 2.00 s", 0),
        (a_report(GOOD, coverage=TWICE), "! passed, not judged: replicas, gradients  1 passed; 4 ranks of train.py in 2.00 s", 0),
        (a_report(BAD, coverage=SHARDED), "✘ failed  hang: 1 failed; 4 ranks of train.py in 2.00 s", 1),
        (a_report(GOOD, BAD), "✘ failed  collective-mismatch: 1 passed, 1 failed; 4 ranks of train.py in 2.00 s", 1),
        (a_report(GOOD, verdict="failed"), "✘ failed  rank 2 on node-1: ValueError: boom", 1),
        (a_report(BAD, verdict="hung"), "✘ hung  rank 2 on node-1: ValueError: boom; hang failed", 124),
    ],
)  # fmt: skip
def test_the_last_line_and_the_exit_code_say_the_same(report: Report, line: str, code: int) -> None:
    assert click.unstyle(check_verdict(report)) == line
    assert report.check_exit_code == code


def test_it_runs_on_all_ranks_and_tells_each_check(project: Project) -> None:
    project.write("train.py", QUIET)

    done = project.run(*CHECK, "-v", "--junit", "out/junit.xml", "--html", "check.html", "train.py")
    assert 'id="data">{"now":' in (project.folder / "check.html").read_text()

    lines = done.stdout.splitlines()
    assert sorted(line.partition("| ")[2] for line in lines if line.startswith("node-")) == ["0 0", "1 1", "2 0", "3 1"]
    assert [line.split()[1] for line in lines if line[:2] in ("✔ ", "✘ ", "! ", "– ")][:-1] == list(CHECK_IDS)
    assert lines[-1].startswith("✘ inconclusive  nothing distributed was seen")
    assert done.returncode == 3
    xmlschema.validate(project.folder / "out" / "junit.xml", ROOT / "tests" / "core" / "report" / "junit-10.xsd")


def test_it_ends_as_a_run_ends_that_fails(project: Project) -> None:
    project.write("train.py", FAILING)

    done = project.run(*CHECK, "--only", "teardown", "train.py")

    assert done.returncode == 1
    assert "Traceback (most recent call last):" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("✘ failed  rank 3 on node-1: ValueError: boom")


def test_settings_come_from_the_file_and_flags_win(project: Project) -> None:
    project.write(
        "pyproject.toml", '[tool.composesim]\nnodes = 1\ncheck = {only = "hang, teardown", junit = "out.xml"}\n'
    )
    project.write("train.py", QUIET)

    report = json.loads(project.run(*CHECK, "--json", "train.py").stdout)
    other = json.loads(project.run(*CHECK, "--json", "--nproc-per-node", "1", "--only", "set-epoch", "train.py").stdout)

    assert ([check["id"] for check in report["checks"]], report["world_size"]) == (["hang", "teardown"], 2)
    assert ([check["id"] for check in other["checks"]], other["world_size"]) == (["set-epoch"], 1)
    assert (project.folder / "out.xml").is_file()


def test_where_two_files_could_be_meant_it_says_which_is(project: Project) -> None:
    project.write("pyproject.toml", "[tool.composesim]\nnodes = 3\n")
    project.write("composesim.yaml", "nodes: 1\n")
    project.write("train.py", QUIET)

    done = project.run(*CHECK, "--only", "hang", "train.py")

    assert "  composesim.yaml is read; [tool.composesim] in pyproject.toml is not\n" in done.stderr
    assert "1 node, 2 ranks" in done.stderr


@pytest.mark.parametrize("words", [("--only", "hang,set-epok"), ("--skip", "set-epok"), ("--explain", "set_epok")])
def test_a_check_that_there_is_not_is_told_with_the_nearest(project: Project, words: tuple[str, ...]) -> None:
    project.write("train.py", QUIET)

    done = project.run("check", *words, "train.py")

    assert done.returncode == 2
    assert "there is no check 'set" in done.stderr
    assert "did you mean 'set-epoch'?" in done.stderr


def test_it_explains_a_check(project: Project) -> None:
    done = project.run("check", "--explain", "set-epoch")

    assert done.stdout == (ROOT / "docs" / "checks" / "set-epoch.md").read_text()


@pytest.mark.parametrize("as_json", [False, True])
def test_github_is_told_what_failed(project: Project, as_json: bool) -> None:
    project.write("train.py", FAILING)
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(project.folder / "summary.md")}

    words = ["--only", "hang", *(["--json"] if as_json else [])]
    done = project.run(*CHECK, *words, "train.py", env={**os.environ, **github})

    told = done.stderr if as_json else done.stdout
    assert "::error file=train.py,line=3,title=composesim failed::ValueError: boom\n" in told
    assert (project.folder / "summary.md").read_text().startswith("### composesim: train.py\n")
    if as_json:
        assert json.loads(done.stdout)["verdict"] == "failed"


def test_a_report_is_written_for_ci_by_other_verbs_too(project: Project) -> None:
    project.write("train.py", FAILING)
    run = f"failing-{secrets.token_hex(3)}"
    project.run("up", "--engine", "local", "--launcher", "env", "--name", run, "--junit", "up.xml", "train.py")
    project.run("report", run, "--junit", "report.xml")

    for name in ("up.xml", "report.xml"):
        xmlschema.validate(project.folder / name, ROOT / "tests" / "core" / "report" / "junit-10.xsd")


@pytest.mark.train
def test_a_wrong_script_fails_its_check_at_its_line(project: Project, tmp_path: Path) -> None:
    project.write("train.py", WRONG)
    github = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path)}

    words = ("--engine", "local", "--only", "set-epoch,params-in-sync", "train.py")
    done = project.run("check", *words, timeout=240, env={**os.environ, **github})

    assert done.returncode == 1
    assert "✔ params-in-sync  " in done.stdout
    assert "✘ set-epoch       " in done.stdout
    assert "    fix: Call " in done.stdout
    assert "::error file=train.py,line=" in done.stdout
    assert "\n✘ failed  set-epoch: 1 passed, 1 failed; 4 ranks of train.py" in done.stdout


OPTIONS = ("--engine", "local", "--nodes", "2")
RESUMES = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(32, 4)
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if os.path.exists("saved/last.pt"):
    first, weights = torch.load("saved/last.pt")
    model.load_state_dict(weights)
for epoch in range(first, 3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, 4, sampler=sampler):
        optimizer.zero_grad()
        (model(batch).square().mean() * dist.get_world_size() ** int(sys.argv[1])).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        os.makedirs("saved", exist_ok=True)
        torch.save((epoch + 1, model.state_dict()), "saved/new.pt")
        os.replace("saved/new.pt", "saved/last.pt")
dist.destroy_process_group()
"""


@pytest.mark.train
@pytest.mark.parametrize(("power", "failed"), [("0", []), ("1", ["loss-scale", "matches-single"])])
def test_a_script_that_finds_its_own_checkpoint_is_compared_without_it(
    project: Project, power: str, failed: list[str]
) -> None:
    project.write("train.py", RESUMES)

    done = project.run("check", "--engine", "local", "--nodes", "2", "--json", "train.py", power)

    report = json.loads(done.stdout)
    judged = {each["id"]: each for each in report["checks"] if each["status"] in ("passed", "failed")}
    assert [each for each in judged if judged[each]["status"] == "failed"] == failed
    assert "matches-single" in judged
    places = {each["place"]["file"] for each in judged.values() if each["place"]}
    assert places <= {str(project.folder / "train.py")}
    assert (project.folder / "saved/last.pt").exists()
    assert not list(project.folder.glob(".composesim/runs/*/copy"))


ENDS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = torch.randn(32, 4)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in data.split(8):
    optimizer.zero_grad()
    model(batch[rank::world]).square().mean().backward()
    optimizer.step()
model.eval()
for fold in data.split(16):
    with torch.no_grad():
        error = model.module(fold).square().mean() * world
    print(f"validation error {error.item():.5f}") if rank == 0 else None
if rank == 0:
    SAVE
dist.destroy_process_group()
"""


@pytest.mark.train
@pytest.mark.parametrize("save", ["torch.save(world, 'end.pt')", "open('end.pt', 'w').write(str(world))"])
def test_world_size_one_evaluates_after_the_last_step_and_overwrites_no_file(project: Project, save: str) -> None:
    project.write("train.py", ENDS.replace("SAVE", save))

    done = project.run("check", *OPTIONS, "--json", "train.py")

    warned = [each["id"] for each in json.loads(done.stdout)["checks"] if each["status"] == "warned"]
    assert warned == ["metric-local"]
    file = project.folder / "end.pt"
    torch = pytest.importorskip("torch")
    assert (str(torch.load(file)) if save.startswith("torch") else file.read_text()) == "2"


@pytest.mark.train
def test_a_log_that_the_script_begins_anew_stays_that_of_the_run(project: Project) -> None:
    project.write("train.py", (ROOT / "tests/zoo/checkpoint-race/right_log_that_all_empty.py").read_text())

    done = project.run("check", *OPTIONS, "train.py")

    assert "Replaying the first steps" in done.stderr + done.stdout
    assert len((project.folder / "training.log").read_text().splitlines()) == 12


@pytest.mark.train
def test_the_self_test_plants_mistakes_also_if_the_script_finds_its_own_checkpoint(project: Project) -> None:
    project.write("train.py", RESUMES)
    project.write("plain.py", RESUMES.replace('os.path.exists("saved/last.pt")', "False"))

    plain = project.run(
        "check", *OPTIONS, "--self-test", "--skip", "loss-scale,matches-single", "--json", "plain.py", "0"
    )
    shutil.rmtree(project.folder / "saved")
    resumes = project.run("check", *OPTIONS, "--self-test", "--json", "train.py", "0")

    for report in map(json.loads, (plain.stdout, resumes.stdout)):
        assert report["verdict"] == "passed"
        assert {each["id"] for each in report["mistakes"] if each["status"] == "found"} >= {"other-rate", "fixed-epoch"}


@pytest.mark.train
def test_an_older_checkpoint_that_the_run_began_from_is_not_left_out(project: Project) -> None:
    project.write("train.py", RESUMES.replace("* dist.get_world_size() **", "* (1 + epoch) **"))
    first = project.run("up", *OPTIONS, "train.py", "0")
    assert first.returncode == 0
    torch = pytest.importorskip("torch")
    saved = project.folder / "saved" / "last.pt"
    _, weights = torch.load(saved)
    torch.save((1, weights), saved)

    report = json.loads(project.run("check", *OPTIONS, "--json", "train.py", "1").stdout)

    assert [each["id"] for each in report["checks"] if each["status"] == "failed"] == []


@pytest.mark.train
@pytest.mark.parametrize("gpus", ["auto", "emulated"])
@pytest.mark.parametrize("kind", ["backend", "shards"])
def test_a_script_that_is_right_only_without_gpus_is_checked_without_unless_they_were_asked_for(
    project: Project, kind: str, gpus: str
) -> None:
    project.write("train.py", WITHOUT_DEVICES if kind == "backend" else SHARDS_WITHOUT_DEVICES)

    words = ("--engine", "local", "--gpus", gpus, "--only", "hang", "--json", "train.py")
    ended = project.run("check", *words)

    report = json.loads(ended.stdout)
    place = report["cause"] and report["cause"]["place"]["line"]
    assert (ended.returncode, report["verdict"], place) == (
        (0, "passed", None) if gpus == "auto" else (1, "failed", 11)
    )
    assert [note for note in report["notes"] if "train.py, line 11" in note] == report["notes"]
    assert bool(report["notes"]) is (gpus == "auto")


@pytest.mark.train
def test_up_tells_what_is_wrong_and_ends_as_the_run_did(project: Project) -> None:
    project.write("train.py", WRONG)

    done = project.run("up", "--engine", "local", "train.py", timeout=240)

    lines = [line for line in done.stderr.splitlines() if line[:2] in ("✔ ", "✘ ", "! ", "– ")]
    assert [line.split()[1].strip(",") for line in lines] == ["set-epoch", "passed"]
    assert done.returncode == 0
