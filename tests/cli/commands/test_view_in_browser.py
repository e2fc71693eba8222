"""The live page in a real browser: several readers, one that sleeps, a wrong token, and a server that is killed."""

from __future__ import annotations

import os
import secrets
import signal

import pytest

from tests.cli.commands.test_cmd_view import Page, served
from tests.cli.conftest import UP, Live, Project
from tests.view.browser import CHROMIUM, a_tab

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (scripts/browser.sh)")


def test_two_readers_follow_a_run_while_a_third_one_sleeps(live: Live) -> None:
    with served(live.project, live.run) as page, a_tab() as one, a_tab() as other:
        sleeper = page.get("/events")
        for tab in (one, other):
            tab.open(f"http://{page.place}/#token={page.token}")
            tab.wait_for("run.logs.length === 2 && document.getElementById('log').textContent.includes('begun 0')")
            assert tab.run("document.getElementById('age').textContent").startswith("data is ")
        for rank in (0, 1):
            live.tell(rank, "0")
        for tab in (one, other):
            tab.wait_for("run.now.is_over && document.querySelector('.pill.good')")
            assert tab.run("[...run.logs].map((each) => each[1]).filter((line) => line === 'told 0').length") == 2
            assert tab.errors == []
        assert b'"is_over":true' in sleeper.read()


def test_a_wrong_token_shows_what_is_wrong_and_no_data(live: Live) -> None:
    with served(live.project, live.run) as page, a_tab() as tab:
        tab.open(f"http://{page.place}/#token={page.token[:-1]}")
        tab.wait_for("document.getElementById('main').textContent.includes('token')")

        assert tab.run("[run.now, run.logs.length, document.getElementById('head').textContent]") == [None, 0, ""]


def test_a_page_whose_server_is_killed_keeps_its_data_and_says_how_to_go_on(live: Live) -> None:
    process = live.project.start("view", live.run)
    assert process.stdout
    page = Page(process.stdout.readline())
    with a_tab() as tab:
        tab.open(f"http://{page.place}/#token={page.token}")
        tab.wait_for("run.logs.length === 2")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        tab.wait_for("document.getElementById('age').textContent.includes('disconnected')")
        with served(live.project, live.run, "--port", page.place.partition(":")[2]) as again:
            tab.wait_for("document.getElementById('age').textContent.includes('open the address')")
            assert tab.run("run.logs.length") == 2
            tab.open(f"http://{again.place}/#token={again.token}")
            tab.wait_for("run.logs.length === 2 && !live.lost")


def test_a_run_that_cannot_be_read_is_told_and_the_run_that_is_shown_keeps_its_name(project: Project) -> None:
    project.write("train.py", "print('once')")
    names = [f"{name}-{secrets.token_hex(3)}" for name in ("one", "other")]
    for name in names:
        assert project.run(*UP, "--nodes", "1", "--name", name, "train.py").returncode == 0
    process = project.start("view", names[0])
    assert process.stdout
    page = Page(process.stdout.readline())
    with a_tab() as tab:
        tab.open(f"http://{page.place}/#token={page.token}")
        tab.wait_for("run.now && run.now.is_over")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        choose = f"box.value = '{names[1]}'; box.dispatchEvent(new Event('change'));"
        tab.run(f"((box) => {{ {choose} }})(document.querySelector('[aria-label=Run]'))")
        tab.wait_for("!document.getElementById('banner').hidden")
        assert (
            tab.run("[document.querySelector('h1').textContent, document.querySelector('[aria-label=Run]').value]")
            == [names[0]] * 2
        )
        assert f"composesim view {names[1]}" in tab.run("document.getElementById('banner').textContent")


def test_two_runs_are_side_by_side_in_one_file(project: Project) -> None:
    project.write(
        "train.py", "import sys\nfor step in range(5): print('step', step, 'loss', float(sys.argv[1]) / (step + 1))"
    )
    names = {name: f"{name}-{secrets.token_hex(3)}" for name in ("old", "new")}
    for name, loss in (("old", "2"), ("new", "1")):
        assert project.run(*UP, "--nodes", "1", "--name", names[name], "train.py", loss).returncode == 0
    alone = project.run("report", names["new"], "--against", names["old"])
    assert (alone.returncode, "--html" in alone.stderr) == (2, True)
    assert project.run("report", names["new"], "--against", names["old"], "--html", "both.html").returncode == 0
    with a_tab() as tab:
        tab.open((project.folder / "both.html").as_uri())
        tab.wait_for("document.querySelector('footer')")
        rows = (
            "[...document.querySelectorAll('#compare tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        shown = {row[0]: row[1:] for row in tab.run(rows)}
        assert shown[""] == [names["old"], names["new"]]
        assert shown["loss"] == ["0.4", "0.2"]
        assert tab.run("document.querySelector('#compare svg .first') !== null")
        assert "step 0" in tab.run("document.querySelector('#compare svg').parentElement.textContent")
        assert tab.errors == []


def test_a_live_page_compares_with_all_steps_of_a_run_with_long_logs(project: Project) -> None:
    """Of long logs, the end comes first: it alone must not pass for the run."""
    project.write("train.py", "for step in range(15_000): print('step', step, 'loss', 1 / (step + 1), '.' * 60)")
    names = [f"{name}-{secrets.token_hex(3)}" for name in ("one", "other")]
    for name in names:
        assert project.run(*UP, "--nodes", "1", "--name", name, "train.py").returncode == 0
    with served(project, names[0]) as page, a_tab() as tab:
        tab.open(f"http://{page.place}/#token={page.token}")
        tab.wait_for("run.now && !run.now.reading_bytes && live.runs.length === 2")
        tab.run(f"compareWith('{names[1]}')")
        tab.wait_for("document.querySelector('#compare svg')")

        assert tab.run("[compared.other.now.run, compared.other.metrics[0][2]]") == [names[1], 0]
        assert "equal at the" in tab.run("document.getElementById('compare').textContent")
        assert tab.errors == []


LATE = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
print(os.getpid(), flush=True)
if dist.get_rank() == 1:
    open("come").read()
dist.barrier()
if dist.get_rank() == 0:
    open("go").read()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.train
def test_the_cluster_shows_who_is_awaited_in_which_collective_while_the_run_goes_on(project: Project) -> None:
    for name in ("come", "go"):
        os.mkfifo(project.folder / name)
    project.write("train.py", LATE)
    run = f"late-{secrets.token_hex(3)}"
    project.run("up", "--engine", "local", "--nodes", "3", "--detach", "--name", run, "train.py")
    try:
        with served(project, run) as page, a_tab() as tab:
            tab.open(f"http://{page.place}/#token={page.token}")
            picture = "document.getElementById('picture').textContent"
            tab.wait_for(f"{picture}.includes('Ranks 0 and 2 wait for rank 1 in barrier #1 (train.py, line 8)')")
            assert tab.run("document.querySelectorAll('#picture .awaits').length") == 2
            assert not tab.run("run.now.hang")
            tab.wait_for("document.querySelector('#nav .pill.warn')")
            assert "Rank 1 is at train.py, line 7." in tab.run(
                "document.querySelector('#verdict .cause span').textContent"
            )
            assert tab.run("document.querySelector('#verdict .source .at').textContent").endswith('open("come").read()')
            stopped = int(tab.run("run.logs.find(([rank]) => rank === 2)[1]"))
            os.kill(stopped, signal.SIGSTOP)  # in the barrier
            tab.wait_for(f"{picture}.includes('Rank 0 waits for ranks 1 and 2 in barrier #1')")
            (project.folder / "come").write_text("")
            tab.wait_for(f"{picture}.includes('wait for rank 2 in barrier #1')")
            os.kill(stopped, signal.SIGCONT)
            tab.wait_for(f"{picture}.includes('Ranks 1 and 2 wait for rank 0 in barrier #2 (train.py, line 11)')")
            (project.folder / "go").write_text("")
            tab.wait_for(f"run.now.is_over && {picture}.includes('Arrows are waits in total')")
            assert tab.errors == []
    finally:
        project.run("down", "--run", run)


STUCK = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    open("never").read()
dist.barrier()
"""


@pytest.mark.train
def test_a_page_that_follows_a_run_into_a_hang_shows_the_stack_of_the_cause_first(project: Project) -> None:
    os.mkfifo(project.folder / "never")
    project.write("train.py", STUCK)
    run = f"stuck-{secrets.token_hex(3)}"
    shape = ("--engine", "local", "--nodes", "3", "--hang-timeout", "3s")
    project.run("up", *shape, "--detach", "--name", run, "train.py")
    try:
        with served(project, run) as page, a_tab() as tab:
            tab.open(f"http://{page.place}/#token={page.token}")
            picture = "document.getElementById('picture').textContent"
            tab.wait_for(f"{picture}.includes('Ranks 0 and 2 wait for rank 1 in barrier #2 (train.py, line 7)')")
            tab.wait_for("run.now.is_over && document.querySelectorAll('.stacks h3').length === 2")
            titles = tab.run("[...document.querySelectorAll('.stacks h3')].map((each) => each.textContent)")
            assert titles == ["rank 1 the cause", "ranks 0, 2 collateral"]
            assert tab.run("document.querySelector('.stacks .frame.mine').textContent") == "train.py:6 <module>"
            assert tab.run("document.querySelector('.pill').textContent") == "✘ hung"
            assert tab.errors == []
    finally:
        project.run("down", "--run", run)
