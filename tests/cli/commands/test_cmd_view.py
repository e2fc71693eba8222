"""The live page: it is served to who has the token, under its own name, and follows a run until it is over."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import DONE, Live, Project, run_finished
from tests.view.browser import CHROMIUM, a_tab

SCRIPT = """
import json
print("<img src=x onerror=alert(1)>", flush=True)
print(json.dumps({"step": 2, "loss": 0.25}), flush=True)
"""


class Page:
    """The server of a page, and what its address says."""

    def __init__(self, address: str) -> None:
        self.place, _, self.token = address.strip().removeprefix("http://").partition("/#token=")

    def get(self, path: str, *, token: str | None = None, host: str | None = None) -> HTTPResponse:
        """Ask for a path, with the right token and host unless others are given."""
        connection = HTTPConnection(self.place, timeout=60)
        token = self.token if token is None else token
        connection.request("GET", path, headers={"Host": host or self.place, "Authorization": f"Bearer {token}"})
        return connection.getresponse()

    def act(self, path: str, action: Any, **headers: str) -> tuple[int, str]:
        """Send an action as the page does, and return status and answer."""
        connection = HTTPConnection(self.place, timeout=60)
        sent = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"} | headers
        connection.request("POST", path, json.dumps(action), sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def messages(self, path: str = "/events") -> Iterator[dict[str, Any]]:
        """Yield the messages of a stream."""
        for line in self.get(path):
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


@contextmanager
def served(project: Project, *words: str) -> Iterator[Page]:
    """Serve a page; Ctrl-C ends it with status 0."""
    process = project.start("view", *words)
    assert process.stdout
    try:
        yield Page(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (0, False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a run of two nodes."""
    return run_finished(tmp_path_factory.mktemp("viewed"), SCRIPT, "--nodes", "2")


def test_data_need_the_token_and_the_page_holds_none(finished: Project) -> None:
    with served(finished, DONE) as page:
        assert [page.get(path, token="").status for path in ("/", "/runs", "/events")] == [200, 401, 401]
        assert page.get("/runs", token=page.token[:-1]).status == 401
        assert page.get(f"/runs?token={page.token}", token="").status == 401
        assert b'id="data">null</script>' in page.get("/", token="").read()
        assert json.load(page.get("/runs")) == {
            "runs": [{"name": DONE, "is_running": False}],
            **{"shown": DONE, "read_only": False},
        }


def test_no_other_name_for_the_machine_and_no_other_site_reaches_the_page(finished: Project) -> None:
    with served(finished, "--run", DONE) as page:
        port = page.place.partition(":")[2]
        answers = [page.get("/", host=host) for host in ("evil.example", f"evil.example:{port}", f"localhost:{port}")]
        headers = answers[-1].headers

        assert [answer.status for answer in answers] == [421, 421, 200]
        assert "Access-Control-Allow-Origin" not in headers
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")


def test_a_finished_run_is_one_message_and_other_names_are_no_path(finished: Project) -> None:
    with served(finished, DONE) as page:
        (message,) = page.messages()

        assert (message["now"]["verdict"], message["now"]["is_over"], len(message["logs"])) == ("passed", True, 4)
        for name in ("no-such-run", "..", f"../runs/{DONE}", "%2e%2e"):
            assert page.get(f"/events?run={name}").status == 404


def test_a_port_that_is_taken_is_bad_usage(finished: Project) -> None:
    with served(finished, DONE) as page:
        done = finished.run("view", DONE, "--port", page.place.partition(":")[2])

    assert done.returncode == 2
    assert "--port" in done.stderr


def test_two_readers_follow_a_run_until_it_is_over(live: Live) -> None:
    with served(live.project, live.run) as page:
        readers = [page.messages(), page.messages()]
        path, pause = f"/actions?run={live.run}", {"verb": "fault", "kind": "pause", "arguments": ["node-1"]}
        seen: list[list[dict[str, Any]]] = []
        for reader in readers:
            seen.append([next(message for message in reader if message["logs"])])
        status, answer = page.act(path, pause)
        assert status == 200
        assert page.act(path, {"verb": "heal", "target": json.loads(answer)["id"]})[0] == 200
        for rank in (0, 1):
            live.tell(rank, "0")
        for reader, messages in zip(readers, seen, strict=True):
            messages += reader

    for first, *_, last in seen:
        assert (first["now"]["verdict"], last["now"]["verdict"], last["now"]["is_over"]) == ("running", "passed", True)
        assert [(fault["kind"], fault["nodes"], fault["healed_s"] > 0) for fault in last["now"]["faults"]] == [
            ("pause", ["node-1"], True)
        ]


def test_actions_need_the_token_a_json_body_and_this_page(finished: Project) -> None:
    path, kill = f"/actions?run={DONE}", {"verb": "fault", "kind": "kill", "arguments": ["node-1"]}
    with served(finished, DONE) as page:
        assert page.act(path, kill, Authorization="")[0] == 401
        assert page.act(path, kill, Origin="http://evil.example")[0] == 421
        assert page.act(path, kill, Origin="null")[0] == 421
        assert page.act(path, kill, **{"Content-Type": "text/plain"})[0] == 415
        assert page.act("/actions?run=..", kill)[0] == 404
        status, answer = page.act(path, kill)
        assert (status, DONE in json.loads(answer)["refused"]) == (200, True)  # the run is over
        wrong: list[Any] = [
            *([], None, {"verb": "exec"}, {**kill, "arguments": "node-1"}, {**kill, "kind": []}, {**kill, "for_s": -1}),
            *(
                {"verb": "scale", "nodes": "3"},
                {"verb": "link", "links": ["node-9=1gbit"]},
                {**kill, "options": {"x": 1}},
            ),
        ]
        assert [list(json.loads(page.act(path, each)[1])) for each in wrong] == [["refused"]] * len(wrong)
        assert "is over" not in "".join(page.act(path, each)[1] for each in wrong)
    with served(finished, DONE, "--read-only") as page:
        assert page.act(path, kill)[0] == 403
        assert json.load(page.get("/runs"))["read_only"]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (scripts/browser.sh)")
def test_the_card_of_actions_pauses_a_node(live: Live) -> None:
    with served(live.project, live.run) as page, a_tab() as tab:
        tab.open(f"http://{page.place}/#token={page.token}")
        tab.wait_for("!document.getElementById('actions').hidden && run.logs.length")
        choose = "box.value = 'node-1'; box.dispatchEvent(new Event('input'));"
        tab.run(f"((box) => {{ {choose} }})(document.querySelector('#actions [aria-label=Node]'))")
        assert tab.run("document.getElementById('act').textContent") == "Pause node-1"
        tab.run("document.getElementById('act').click()")  # the first action is to pause
        tab.wait_for("document.getElementById('action-result').textContent.startsWith('Pause node-1: sent.')")
        fault = tab.run("document.getElementById('action-result').dataset.id")
        tab.wait_for("run.now.faults.some((each) => each.kind === 'pause' && each.nodes[0] === 'node-1')")
        assert page.act(f"/actions?run={live.run}", {"verb": "heal", "target": fault})[0] == 200
        for rank in (0, 1):
            live.tell(rank, "0")
        tab.wait_for("run.now.is_over && document.getElementById('actions').hidden")
        assert tab.errors == []


STAMPED = """
import os, time, pathlib
folder = pathlib.Path(os.environ["COMPOSESIM_DIR"])
(log,) = [*folder.glob(f"logs/*.{os.environ['RANK']}.log"), *folder.glob(f"nodes/*/logs/*.{os.environ['RANK']}.log")]
for number in range(8):
    line = f"{time.time()!r}\\n"
    print(line, end="", flush=True)
    while not log.read_text().endswith(line):
        time.sleep(0.01)
"""


@pytest.mark.parametrize("engine", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_line_has_the_time_at_which_it_was_printed(tmp_path: Path, engine: str) -> None:
    """The script prints a time, and the next one only when the node has read the line: the time on the page is between both."""
    project = run_finished(tmp_path, STAMPED, "--nodes", "2", "--engine", engine)
    with served(project, DONE) as page:
        (message,) = page.messages()
    started = message["now"]["timings"]["started_at"]
    for rank in (0, 1):
        lines = [(float(line), started + t) for of, line, t in message["logs"] if of == rank]
        assert len(lines) == 8
        for (printed, shown), (following, _) in pairwise(lines):
            assert printed - 0.022 <= shown <= following + 0.002  # a node stamps output every 20 ms at most


def test_of_much_output_the_end_comes_first_and_then_all_of_it_in_pieces(tmp_path: Path) -> None:
    project = run_finished(tmp_path, "for number in range(45_000): print(f'line {number}', 'x' * 40)\n", "--nodes", "1")
    with served(project, DONE) as page:
        first, whole, *pieces = page.messages()

    assert first["now"]["reading_bytes"] > 1 << 20
    assert first["logs"][-1][1].startswith("line 44999 ")
    assert (len(first["logs"]) < 3000, whole["is_whole"], len(whole["logs"])) == (True, True, 20_000)
    lines = [
        line.split()[1]
        for message in (*reversed([each["earlier"] for each in pieces]), whole["logs"])
        for _, line, _ in message
    ]
    assert lines == [str(number) for number in range(45_000)]
