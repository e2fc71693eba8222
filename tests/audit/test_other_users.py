"""Another user of this machine connects to all that listens on 127.0.0.1 for a run (the table in SECURITY.md)."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from compose_sim.engine.host import run_names
from compose_sim.engine.host.run_names import claimed_name
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.node.planning import fake_run
from compose_sim.view.server import ViewServer
from tests.audit.strangers import USER, answer_of, as_stranger, ports_of
from tests.cli.conftest import COMMAND, UP, Project

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def debugger_messages(victim: Path) -> list[bytes]:
    """What an editor sends to stop a program and to execute an expression in it."""
    write = f"open({str(victim)!r}, 'w')"
    requests = [
        ("initialize", {"adapterID": "x", "clientID": "x", "pathFormat": "path"}),
        ("attach", {"justMyCode": False}),
        ("configurationDone", {}),
        ("pause", {"threadId": 1}),
        ("evaluate", {"expression": write, "context": "repl"}),
    ]
    bodies = [
        json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
        for number, (command, arguments) in enumerate(requests, start=1)
    ]
    return [b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies]


@pytest.mark.train
@pytest.mark.parametrize("when", ["before the editor", "beside the editor"])
def test_a_debugger_serves_only_its_own_user(project: Project, when: str) -> None:
    run, victim = f"debug-{secrets.token_hex(3)}", project.folder / "written"
    project.write("train.py", "breakpoint()\nprint('over')\n")
    assert (
        project.run(*UP, "--nodes", "1", "--nproc-per-node", "1", "--detach", "--name", run, "train.py").returncode == 0
    )
    attach = project.start("attach", "--dap", "0", "--run", run)
    assert attach.stderr is not None
    found = None
    while found is None:
        text = attach.stderr.readline()
        assert text
        found = re.search(r"127\.0\.0\.1:(\d+)", text)
    port, messages = int(found[1]), debugger_messages(victim)
    editor = socket.create_connection(("127.0.0.1", port)) if when == "beside the editor" else None
    if editor:
        editor.sendall(messages[0])
        assert editor.recv(1)
    ports = set(ports_of(run))
    assert port in ports or editor, "the listener of `attach`"

    answers = as_stranger(lambda: {each: answer_of(each, *messages).decode("latin-1") for each in ports})

    assert not any("initialized" in answer or "capabilities" in answer for answer in answers.values()), answers
    if editor is None:
        assert answers[str(port)] == ""
        editor = socket.create_connection(("127.0.0.1", port))  # this user may
        editor.sendall(messages[0])
        assert editor.recv(1)
    editor.close()
    attach.communicate()
    assert project.run("wait", "--run", run).returncode == 0
    assert not victim.exists()


@pytest.fixture
def page(project: Project) -> Iterator[ViewServer]:
    with ViewServer(RunFolder(project.folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def request_of(server: ViewServer, path: str = "/runs") -> bytes:
    host, token = f"127.0.0.1:{server.server_port}", f"Authorization: Bearer {server.token}"
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{token}\r\n\r\n".encode()


def test_the_page_answers_no_other_user_even_with_the_token(page: ViewServer) -> None:
    port, request = page.server_port, request_of(page)

    assert answer_of(port, request).startswith(b"HTTP/1.0 200")
    assert as_stranger(lambda: answer_of(port, request).decode()) == ""


def test_a_client_may_use_an_ipv6_socket(page: ViewServer) -> None:
    with socket.socket(socket.AF_INET6) as link:
        link.connect(("::ffff:127.0.0.1", page.server_port))
        link.sendall(request_of(page))
        assert link.recv(12) == b"HTTP/1.0 200"


def test_the_page_takes_a_limited_number_of_connections(page: ViewServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", page.server_port), timeout=2) for _ in range(100)]
    closed = [link for link in idle if is_closed(link)]
    for link in idle:
        link.close()

    assert len(closed) == 100 - 64
    while not answer_of(page.server_port, request_of(page)):  # the threads of the others end at once
        continue


def is_closed(link: socket.socket) -> bool:
    link.settimeout(0.2)
    try:
        return link.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_a_browser_is_started_with_an_address_that_works_once(project: Project) -> None:
    opened, browser = project.folder / "opened", project.folder / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(0o755)
    run = f"view-{secrets.token_hex(3)}"
    project.write("train.py", "print('over')\n")
    up = [*UP, "--nodes", "1", "--nproc-per-node", "1", "--name", run, "train.py"]
    assert project.run(*up).returncode == 0
    environment = {**os.environ, "BROWSER": str(browser)}
    words = [*COMMAND, "view", run, "--open"]
    with subprocess.Popen(words, cwd=project.folder, env=environment, stdout=subprocess.PIPE, text=True) as view:
        assert view.stdout is not None
        address = view.stdout.readline().strip()
        while not opened.exists():
            assert view.poll() is None
        host, _, path = opened.read_text().removeprefix("http://").partition("/")
        request = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        port = int(host.partition(":")[2])
        assert as_stranger(lambda: answer_of(port, request).decode()) == ""
        first, second = answer_of(port, request).decode(), answer_of(port, request).decode()
        view.send_signal(2)

    assert address.partition("token=")[2] not in opened.read_text()
    assert f"Location: {address}\r\n" in first
    assert second.startswith("HTTP/1.0 404")


def test_a_user_without_a_home_can_start_a_run() -> None:
    def claim() -> str:
        os.environ.pop("HOME", None)
        with claimed_name("local", "demo"):
            return str(run_names._folder())

    folder = as_stranger(claim)
    try:
        assert folder == f"/tmp/composesim-{USER}"
    finally:
        Path(folder).rmdir()


def test_the_estimate_of_a_user_without_a_home_writes_no_files() -> None:
    def write() -> str:
        os.environ.pop("HOME", None)
        fake_run.write_no_file(SimpleNamespace())
        Path("/written").write_text("")
        return "written"

    with pytest.raises(RuntimeError, match="an estimate writes no files"):
        as_stranger(write)


def test_a_process_of_another_user_does_not_pass_for_a_node(project: Project) -> None:
    run = f"planted-{secrets.token_hex(3)}"
    labels = {
        "COMPOSESIM_ENGINE": "local",
        "COMPOSESIM_RUN": run,
        "COMPOSESIM_NODE": "node-0",
        "COMPOSESIM_DIR": "/tmp",
    }
    script = "export COMPOSESIM_AGENT_PID=$$; echo; exec sleep 600"
    planted = subprocess.Popen(
        ["/bin/sh", "-c", script], env=labels, user=USER, group=USER, extra_groups=[], stdout=subprocess.PIPE, cwd="/"
    )
    assert planted.stdout is not None
    planted.stdout.readline()
    try:
        project.write("train.py", "import signal\nsignal.pause()\n")
        up = [*UP, "--nodes", "1", "--nproc-per-node", "1", "--detach", "--name", run, "train.py"]
        assert project.run(*up).returncode == 0, "the name is free"
        assert project.run("exec", "--run", run, "node-0", "--", "id", "-u").stdout == "0\n"
        assert project.run("down", "--run", run).returncode == 0
        assert planted.poll() is None
    finally:
        planted.kill()
        planted.communicate()
