"""Real services beside the nodes: who may open them, what they show, where the token is, and that they end with the run."""

from __future__ import annotations

import http.cookiejar
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import Project, containers_of, eventually, project_in, wait_for_line

pytestmark = [pytest.mark.recipes, pytest.mark.docker]

TRAIN = """
import json, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.01)
if rank == 0:
    with SummaryWriter("runs/first") as writer:
        for step in range(5):
            writer.add_scalar("loss", 1 / (step + 1), step)
print("begun", flush=True)
step = 0
while not Path("done").exists():
    step += 1
    loss = (weight**2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(json.dumps({"step": step, "loss": loss.item()}), flush=True)
    time.sleep(0.1)
dist.destroy_process_group()
"""
# Grafana's image comes only from a registry. This stand-in prints its configuration on the port of Grafana.
STAND_IN = """FROM composesim-test-base:1
ENTRYPOINT ["python3", "-m", "http.server", "3000", "--directory", "/composesim"]
"""
# Do what a notebook does in the browser: start a kernel and talk to it over a web socket. Arguments: host, token, code.
NOTEBOOK = """
import json, sys, urllib.request, uuid
import websocket

host, token, code = sys.argv[1:]
own = {"Authorization": f"token {token}"}
kernel = json.load(urllib.request.urlopen(urllib.request.Request(f"http://{host}/api/kernels", method="POST", headers=own)))
channels = websocket.create_connection(f"ws://{host}/api/kernels/{kernel['id']}/channels", header=own)
header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": uuid.uuid4().hex, "username": "", "version": "5.3"}
content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
asked = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
channels.send(json.dumps(asked))
status, is_idle = None, False  # output comes through a channel of its own, perhaps after the reply, but before "idle"
while not (status and is_idle):
    heard = json.loads(channels.recv())
    if heard["parent_header"].get("msg_id") != header["msg_id"]:
        continue
    if heard["msg_type"] == "stream":
        print(heard["content"]["text"], end="")
    if heard["msg_type"] == "execute_reply":
        status = heard["content"]["status"]
    is_idle |= heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle"
sys.exit(status != "ok")
"""


@dataclass(frozen=True)
class Living:
    """A running run with services."""

    project: Project
    run: str
    process: subprocess.Popen[str]
    token: str
    links: dict[str, str]  # as they were printed

    @property
    def folder(self) -> Path:
        return self.project.folder / ".composesim" / "runs" / self.run

    def port(self, name: str) -> int:
        port = urllib.parse.urlsplit(self.links[name]).port
        assert port
        return port

    def ask(self, name: str, path: str, *, token: str = "") -> tuple[int, str]:
        """Return the status and text of a response to a program."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port(name)}{path}", headers=headers)
        return answer_to(request)

    def query(self, expression: str) -> list[Any]:
        """Return what Prometheus answers to a query."""
        path = f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        status, text = self.ask("prometheus", path, token=self.token)
        assert status == 200, text
        found: list[Any] = json.loads(text)["data"]["result"]
        return found


def answer_to(request: urllib.request.Request | str) -> tuple[int, str]:
    """Return the status of a request by a browser without cookies; 0 if nothing responds."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    try:
        with browser.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""


def docker(*argv: str, feed: str | None = None) -> str:
    done = subprocess.run(["docker", *argv], input=feed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    yield from project_in(tmp_path)


@pytest.fixture(scope="module")
def prometheus() -> str:
    """An image with the distribution's Prometheus, which starts as the official one does."""
    made = subprocess.run(
        [Path(__file__).with_name("prometheus_image.sh")], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory, recipes_python: Path, prometheus: str) -> Iterator[Living]:
    """Two nodes of the recipe ddp, and all services."""
    subprocess.run([ROOT / "scripts" / "base_image.sh"], capture_output=True, check=True)
    docker("build", "--quiet", "--tag", "composesim-test-grafana:1", "-", feed=STAND_IN)
    for project in project_in(tmp_path_factory.mktemp("services")):
        run = project.named("with")
        services = f"jupyter,tensorboard,prometheus={prometheus},grafana=composesim-test-grafana:1"
        words = (
            "--nodes",
            "2",
            "--engine",
            "docker",
            "--python",
            str(recipes_python),
            "--memory",
            "2g",
            "--with",
            services,
        )
        process = project.start("up", "--name", run, *words, project.write("train.py", TRAIN))
        try:
            wait_for_line(process, "begun")
            token = (project.folder / ".composesim" / "runs" / run / "secrets" / "token").read_text()
            yield Living(project, run, process, token, printed_links(project, run))
        finally:
            (project.folder / "done").touch()
            process.communicate(timeout=PATIENCE_S)


def printed_links(project: Project, run: str) -> dict[str, str]:
    """Return the links that `ps` prints for this run, by name."""
    _, _, own = project.run("ps").stdout.partition(f"{run} publishes on this machine:\n")
    lines = (line.split() for line in own.partition("\n\n")[0].splitlines())
    return {words[0]: words[1] for words in lines if "://" in words[1]}


def test_every_link_opens_with_its_token_and_none_without(living: Living) -> None:
    assert set(living.links) == {"jupyter", "tensorboard", "prometheus", "grafana"}
    for name in ("jupyter", "tensorboard", "prometheus"):
        link = living.links[name]
        eventually(lambda link=link: answer_to(link)[0] == 200, within=PATIENCE_S, what=f"{name} answers at {link}")
    assert living.ask("jupyter", "/api/contents")[0] == 403
    assert living.ask("jupyter", "/api/contents?token=wrong")[0] == 403
    assert living.ask("tensorboard", "/data/runs")[0] == 401
    assert living.ask("tensorboard", "/data/runs?token=wrong")[0] == 401
    assert living.ask("prometheus", "/api/v1/query?query=up")[0] == 401
    assert living.ask("prometheus", "/metrics", token="0" * 64)[0] == 401


def test_the_notebook_runs_code_where_the_project_is(living: Living, recipes_python: Path) -> None:
    eventually(lambda: living.ask("jupyter", "/api")[0] == 200, within=PATIENCE_S, what="Jupyter answers")
    code = "import os; print(sorted(os.listdir()), os.listdir(os.environ['COMPOSESIM_SHARED']), os.cpu_count() > 0)"

    words = [recipes_python, "-c", NOTEBOOK, f"127.0.0.1:{living.port('jupyter')}", living.token, code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 0, done.stderr
    assert "'train.py'" in done.stdout
    assert done.stdout.strip().endswith("[] True")


def test_tensorboard_shows_what_the_script_wrote(living: Living) -> None:
    def shown() -> bool:
        status, text = living.ask("tensorboard", "/data/plugin/scalars/tags", token=living.token)
        return status == 200 and "loss" in json.loads(text).get("project/first", {})

    eventually(shown, within=PATIENCE_S, what="TensorBoard shows the scalars of runs/first")


def test_every_panel_asks_what_prometheus_knows(living: Living) -> None:
    """Prometheus accepts the dashboard's queries; there are no metrics of GPUs or Ray here."""
    board = json.loads((living.folder / "services/grafana/dashboards/composesim.json").read_text())
    asked = {
        (panel["title"], target["expr"].replace("$run", living.run).replace("$metric", ".*"))
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    assert len(asked) > 15
    absent = {title for title, expression in asked if "gpu" in expression or "ray_" in expression}

    for title, expression in sorted(asked):
        if title in absent:
            assert living.query(expression) == []
        elif title != "Longest wait for others":  # nobody waits here
            eventually(
                lambda query=expression: living.query(query) != [], within=PATIENCE_S, what=f"'{title}' is known"
            )
    (nodes,) = living.query(f'sum(composesim_node_up{{run="{living.run}"}})')
    assert nodes["value"][1] == "2"
    series = living.query('composesim_rank_metric{metric="loss"}')
    assert {(each["metric"]["node"], each["metric"]["rank"]) for each in series} == {("node-0", "0"), ("node-1", "1")}


def test_grafana_finds_its_files(living: Living) -> None:
    """The port, the provisioning and the password are where the image looks for them, readable for its user."""
    eventually(lambda: living.ask("grafana", "/")[0] == 200, within=PATIENCE_S, what="what stands for Grafana answers")
    inside = "/services/grafana"

    assert living.ask("grafana", f"{inside}/dashboards/composesim.json")[0] == 200
    assert "127.0.0.1:9091" in living.ask("grafana", f"{inside}/datasources/composesim.yaml")[1]
    assert living.ask("grafana", "/secrets/token")[1] == living.token
    environment = docker("inspect", "--format", "{{json .Config.Env}}", f"composesim-{living.run}-grafana-1")
    assert "GF_SECURITY_ADMIN_PASSWORD__FILE=/composesim/secrets/token" in environment


def test_no_other_address_of_this_machine_has_their_ports(living: Living) -> None:
    ports = {living.port(name) for name in living.links}
    listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    elsewhere = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }

    assert {each.laddr.ip for each in listening if each.laddr and each.laddr.port in ports} == {"127.0.0.1"}
    assert elsewhere
    for address in elsewhere:
        for port in ports:
            with socket.socket() as caller:
                caller.settimeout(10)
                assert caller.connect_ex((address, port)) != 0


def test_the_token_is_in_one_file_only(living: Living) -> None:
    """Docker does not report it for containers either, nor store it with their commands."""
    ids = containers_of(living.run)
    assert len(ids) == 8
    told = docker("inspect", *ids) + docker("network", "inspect", f"composesim-{living.run}_cluster")
    said = "".join(docker("logs", each) for each in ids)
    holding = [
        str(path.relative_to(living.project.folder))
        for path in living.project.folder.rglob("*")
        if path.is_file() and living.token.encode() in path.read_bytes()
    ]

    assert living.token not in told
    assert living.token not in said
    assert holding == [f".composesim/runs/{living.run}/secrets/token"]
    assert (living.folder / "secrets/token").stat().st_mode & 0o777 == 0o600


def test_ps_tells_programs_where_and_not_the_secret(living: Living) -> None:
    done = living.project.run("ps", "--json")

    runs = json.loads(done.stdout)["runs"]
    (own,) = [run for run in runs if run["run"] == living.run]
    assert [each["name"] for each in own["published"]] == ["jupyter", "tensorboard", "prometheus", "grafana"]
    port = living.port("jupyter")
    assert own["published"][0]["url"] == f"http://127.0.0.1:{port}/lab"
    assert own["published"][0]["tunnel"].startswith(f"ssh -N -L {port}:127.0.0.1:{port} ")
    assert [node["node"] for node in own["nodes"]] == ["master", "node-0", "node-1"]
    assert living.token not in done.stdout


def test_a_service_that_ends_ends_nothing_and_is_told(living: Living) -> None:
    docker("kill", f"composesim-{living.run}-tensorboard-1")
    events = living.folder / "journal" / "composesim.jsonl"

    eventually(
        lambda: any('"kind": "service"' in line for line in events.read_text().splitlines()),
        within=PATIENCE_S,
        what="the end of TensorBoard is an event",
    )
    assert living.process.poll() is None


def test_all_of_it_goes_with_the_run(living: Living) -> None:
    """This is the last test: it ends the run."""
    (living.project.folder / "done").touch()
    _, said = living.process.communicate(timeout=PATIENCE_S)

    assert living.process.returncode == 0, said
    assert "the service tensorboard exited with status 137" in said
    report = living.project.report_of(living.run)
    assert report["verdict"] == "passed"
    assert [node["name"] for node in report["nodes"]] == ["node-0", "node-1"]
    assert [each["name"] for each in report["published"]] == ["jupyter", "tensorboard", "prometheus", "grafana"]
    assert living.token not in json.dumps(report)
    assert containers_of(living.run) == []
    assert all(answer_to(link)[0] == 0 for link in living.links.values())


def test_kept_services_can_be_looked_at_afterwards(project: Project, recipes_python: Path) -> None:
    run = project.named("kept")
    words = ("--engine", "docker", "--nodes", "1", "--python", str(recipes_python), "--with", "tensorboard")
    done = project.run("up", "--recipe", "exec", "--keep", "--name", run, *words, "--", "true")
    try:
        assert done.status == 0, done
        link = printed_links(project, run)["tensorboard"]
        eventually(lambda: answer_to(link)[0] == 200, within=PATIENCE_S, what="TensorBoard answers after the run")
    finally:
        removed = project.run("down", "--run", run)
    assert removed.status == 0
    assert answer_to(link)[0] == 0


def test_services_go_where_composesim_was_killed(project: Project, recipes_python: Path, prometheus: str) -> None:
    run = project.named("killed")
    words = (
        "--engine",
        "docker",
        "--nodes",
        "1",
        "--python",
        str(recipes_python),
        "--with",
        f"prometheus={prometheus}",
    )
    process = project.start("up", "--recipe", "exec", "--name", run, *words, "--", "sh", "-c", "echo begun; sleep 600")
    wait_for_line(process, "begun")
    assert len(containers_of(run)) == 4

    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    eventually(lambda: containers_of(run) == [], within=PATIENCE_S, what="nothing of the run is left")
    supervisor = project.folder / ".composesim" / "runs" / run / "supervisor.log"
    eventually(lambda: "nothing is left" in supervisor.read_text(), within=PATIENCE_S, what="the supervisor is done")


@pytest.fixture
def taken() -> Iterator[int]:
    """Bind a port without listening, so that planning does not see it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def test_a_port_that_is_lost_at_the_start_is_an_error_and_leaves_nothing(
    project: Project, recipes_python: Path, taken: int
) -> None:
    run = project.named("lost")
    words = ("--engine", "docker", "--nodes", "1", "--python", str(recipes_python), "--with", "tensorboard")
    fixed = ("--publish", f"tensorboard={taken}", "--name", run)

    done = project.run("up", "--recipe", "exec", *words, *fixed, "--", "true")

    assert done.status == 2, done
    assert f"port {taken} for 'tensorboard' is in use by " in done.stderr
    assert "Try: composesim up --publish tensorboard=" in done.stderr
    assert containers_of(run) == []


# A docker command before whose first `compose up` the port of TensorBoard gets taken.
THIEF = """#!{python}
import os, re, socket, subprocess, sys, time
from pathlib import Path

words, mark = sys.argv[1:], Path(os.environ["THIEFS_MARK"])
if "up" in words and not mark.exists():
    document = Path(words[words.index("--file") + 1]).read_text()
    port = int(re.search(r"127\\.0\\.0\\.1:(\\d+):6006", document)[1])
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    thief = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mark.write_text(f"{{thief.pid}} {{port}}")
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.01)
os.execv("{docker}", ["docker", *words])
"""


def test_a_port_that_nobody_asked_for_is_another_where_it_is_lost_at_the_start(
    project: Project, recipes_python: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("thief")
    command, mark = folder / "docker", folder / "mark"
    command.write_text(THIEF.format(python=sys.executable, docker=shutil.which("docker")))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("THIEFS_MARK", str(mark))
    words = ("--engine", "docker", "--nodes", "1", "--python", str(recipes_python), "--with", "tensorboard")

    done = project.run("up", "--recipe", "exec", "--json", "--name", project.named("stolen"), *words, "--", "true")

    thief, port = map(int, mark.read_text().split())
    psutil.Process(thief).kill()
    assert done.status == 0, done
    assert done.report["published"][0]["port"] > port
    (choice,) = [choice for choice in done.report["choices"] if choice["what"] == "port"]
    assert f"{port} is in use by " in choice["why"] or f"{port + 1} is in use by " in choice["why"]


def test_a_port_that_is_taken_is_an_error_before_anything_starts(project: Project, recipes_python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = ("--engine", "docker", "--python", str(recipes_python), "--with", "jupyter")

        done = project.run("up", *words, "--publish", f"jupyter={port}", project.write("train.py", ""))

    assert done.status == 2
    who = f"{psutil.Process().name()} (process {os.getpid()})"
    assert f"port {port} for 'jupyter' is in use by {who}" in done.stderr


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ("jupyter", "the image 'composesim-test-base:1' has no jupyterlab, which '--with jupyter' runs"),
        (
            "prometheus=127.0.0.1:1/nobody:1",
            "the image '127.0.0.1:1/nobody:1' is not on this machine and could not be pulled",
        ),
    ],
)
def test_what_a_service_lacks_is_said_before_anything_starts(project: Project, services: str, message: str) -> None:
    subprocess.run([ROOT / "scripts" / "base_image.sh"], capture_output=True, check=True)
    run = project.named("lacks")
    words = ("--engine", "docker", "--image", "composesim-test-base:1", "--with", services, "--name", run)

    done = project.run("up", "--recipe", "exec", *words, "--", "true")

    assert done.status == 4, done
    assert message in done.stderr
    assert "--with" in done.stderr.rpartition("Try:")[2]
    assert containers_of(run) == []
