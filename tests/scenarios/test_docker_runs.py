"""Behavior that only containers show: memory limits, killed nodes, kill -9 of composesim, names and subnets in use."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import (
    BARE,
    FOREVER,
    PAUSES,
    Project,
    containers_of,
    eventually,
    networks_of,
    rules_of,
    wait_for_line,
)

pytestmark = [pytest.mark.docker, pytest.mark.train]


def test_a_rank_out_of_memory_is_the_cause(project: Project) -> None:
    script = project.write(
        "train.py",
        "import os, signal\nhoard = []\nwhile os.environ['RANK'] == '1': hoard.append(bytearray(10**7))\nwhile True: signal.pause()\n",
    )
    outcome = project.run("up", *BARE, "--nodes", "2", "--memory", "100m", "--json", script)

    assert outcome.status == 1
    assert outcome.report["cause"]["kind"] == "oom"
    assert outcome.report["cause"]["node"] == "node-1"


def test_a_killed_node_is_the_cause_and_stops_the_others(project: Project) -> None:
    script = project.write("train.py", PAUSES)
    with project.start("up", *BARE, "--nodes", "3", "--name", project.named("killed"), script) as process:
        for _ in range(3):
            wait_for_line(process, "begun")
        subprocess.run(
            ["docker", "kill", f"composesim-{project.named('killed')}-node-1-1"], check=True, capture_output=True
        )

        assert process.wait(PATIENCE_S) == 1
    report = project.report_of(project.named("killed"))
    assert (report["cause"]["node"], report["cause"]["message"]) == ("node-1", "node-1 was killed (SIGKILL)")


def test_a_killed_node_started_by_hand_rejoins(project: Project) -> None:
    script = project.write(
        "train.py",
        "import os, time, torch.distributed as dist\ndist.init_process_group('gloo')\nprint('begun', flush=True)\n"
        "while os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep(0.1)\n"
        "dist.barrier()\ndist.destroy_process_group()\n",
    )
    with project.start(
        "up", "--nodes", "2", "--max-restarts", "1", "--name", project.named("rejoin"), script
    ) as process:
        wait_for_line(process, "begun")
        wait_for_line(process, "begun")
        for verb in ("kill", "start"):
            subprocess.run(
                ["docker", verb, f"composesim-{project.named('rejoin')}-node-0-1"], check=True, capture_output=True
            )

        assert process.wait(PATIENCE_S) == 0
    report = project.report_of(project.named("rejoin"))
    assert report["verdict"] == "passed"
    assert report["nodes"][0]["attempts"] == 2


@pytest.mark.parametrize(
    ("number", "text", "options"), [(signal.SIGINT, FOREVER, ()), (signal.SIGTERM, PAUSES, BARE)], ids=["int", "term"]
)
def test_an_interrupt_ends_the_run_and_is_reported(
    project: Project, number: signal.Signals, text: str, options: tuple[str, ...]
) -> None:
    script = project.write("train.py", text)
    with project.start("up", *options, "--nodes", "2", script) as process:
        wait_for_line(process, "begun")
        process.send_signal(number)

        assert process.wait(PATIENCE_S) == 130


@pytest.mark.parametrize("phase", ["rules", "containers", "begun"])
def test_kill_9_of_composesim_leaves_nothing(project: Project, phase: str) -> None:
    """The run's supervisor cleans up, even if the containers were still being created."""
    script = project.write("train.py", PAUSES)
    name = project.named("crashed")
    with project.start("up", *BARE, "--nodes", "2", "--name", name, script) as process:
        if phase == "begun":
            wait_for_line(process, "begun")
        elif phase == "rules":
            eventually(lambda: rules_of(name) != [] or os.geteuid() != 0, within=PATIENCE_S, what="the host is closed")
        else:
            eventually(lambda: networks_of(name) != [], within=PATIENCE_S, what="the network is made")
        process.kill()
        process.wait()

    eventually(lambda: containers_of(name) == [] == networks_of(name), within=PATIENCE_S, what="nothing is left")
    log = project.folder / ".composesim" / "runs" / name / "supervisor.log"
    eventually(lambda: "nothing is left" in log.read_text(), within=PATIENCE_S, what="the supervisor has looked twice")
    assert rules_of(name) == []


def test_two_runs_at_once_do_not_meet(project: Project) -> None:
    script = project.write(
        "train.py",
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "name = torch.tensor(list(os.environ['COMPOSESIM_RUN'].encode()))\n"
        "found = [torch.zeros_like(name) for _ in range(dist.get_world_size())]\ndist.all_gather(found, name)\n"
        "print(*(bytes(each.tolist()).decode() for each in found))\n",
    )
    names = [project.named("one"), project.named("two")]
    processes = [project.start("up", "--nodes", "2", "--name", name, script) for name in names]
    for name, process in zip(names, processes, strict=True):
        printed = process.communicate(timeout=PATIENCE_S)[0]

        assert process.returncode == 0
        assert sorted(printed.splitlines()) == [f"node-{number} | {name} {name}" for number in (0, 1)]


def test_two_runs_with_one_name_are_refused(project: Project) -> None:
    script = project.write("train.py", PAUSES)
    with project.start("up", *BARE, "--name", project.named("twice"), script) as process:
        wait_for_line(process, "begun")
        second = project.run("up", "--name", project.named("twice"), script)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)

    assert second.status == 2
    assert "is under way" in second.stderr


def test_a_taken_subnet_is_refused(project: Project) -> None:
    script = project.write("ok.py", "print('ok')\n")
    network = project.named("composesim-test-taken")
    third = 128 + secrets.randbelow(100)  # others may be running this test at the same time
    create = ["docker", "network", "create", "--subnet", f"10.213.{third}.0/24", network]
    subprocess.run(create, check=True, capture_output=True)
    try:
        outcome = project.run("up", "--subnet", f"10.213.{third}.0/25", script)
    finally:
        subprocess.run(["docker", "network", "rm", network], check=True, capture_output=True)

    assert outcome.status == 2
    assert f"'10.213.{third}.0/24'" in outcome.stderr


def test_an_absent_image_is_an_environment_error(project: Project) -> None:
    outcome = project.run("up", "--image", "composesim-test/no-such-image:1", project.write("ok.py", "print('ok')\n"))

    assert outcome.status == 4
    assert "'composesim-test/no-such-image:1' is not on this machine" in outcome.stderr


def test_an_image_without_python_or_torch_is_named_before_anything_starts(project: Project) -> None:
    empty, run = f"composesim-test-{secrets.token_hex(4)}:1", project.named("bare")
    without_torch = subprocess.run([ROOT / "scripts" / "base_image.sh"], capture_output=True, text=True, check=True)
    script = project.write("ok.py", "print('ok')\n")
    subprocess.run(["docker", "import", "-", empty], input=b"\0" * 1024, capture_output=True, check=True)
    try:
        found = {
            words: project.run("up", "--engine", "docker", "--image", image, "--name", run, script)
            for image, words in ((empty, "no 'python3'"), (without_torch.stdout.strip(), "'python3' without torch"))
        }
    finally:
        subprocess.run(["docker", "image", "rm", empty], check=True, capture_output=True)

    for words, outcome in found.items():
        assert outcome.status == 4, outcome.stderr
        assert words in outcome.stderr
        assert "--image host" in outcome.stderr.rpartition("Try:")[2]
    assert containers_of(run) == []
    assert not (project.folder / ".composesim" / "runs" / run).exists()


def test_awkward_values_reach_the_script_unchanged(project: Project) -> None:
    awkward = ["$HOME ${X} $$", "a'b\"c\\", "line\nline", "on", "no", "#x", "🚲 é", ""]
    script = project.write(
        "show.py", "import json, os, sys\njson.dump([sys.argv[1:], os.environ['V']], open('seen.json', 'w'))\n"
    )
    outcome = project.run(
        "up", *BARE, "--nodes", "1", "--engine", "docker", "--env", f"V={awkward[0]}\n{awkward[1]}", script, *awkward
    )

    assert outcome.status == 0, outcome.stderr
    assert json.loads((project.folder / "seen.json").read_text()) == [awkward, f"{awkward[0]}\n{awkward[1]}"]


def test_a_rendered_folder_runs_without_composesim(project: Project, tmp_path: Path) -> None:
    project.write(".env", "GREETING='hello there'\n")
    joined = "import os, torch.distributed as d\nd.init_process_group('gloo')\nd.barrier()\n"
    script = project.write("train.py", joined + "print(os.environ['GREETING'], d.get_rank())\n")
    rendered = project.run("render", "out", "--nodes", "2", "--name", project.named("plain"), script)
    assert rendered.status == 0, rendered.stderr
    try:
        up = _compose(tmp_path / "out", "up")
        assert up.returncode == 0, up.stderr
        assert "hello there 0" in up.stdout
        assert "hello there 1" in up.stdout
    finally:
        _compose(tmp_path / "out", "down")


@pytest.mark.parametrize(("last", "code"), [("", 0), ("assert os.environ['RANK'] == '0'", 1)], ids=["passes", "fails"])
def test_a_rendered_folder_gives_ci_its_exit_code(project: Project, tmp_path: Path, last: str, code: int) -> None:
    """The master's exit code is that of the run, for users who have Compose and nothing else."""
    script = project.write("train.py", f"import os\n{last}\n")
    project.run("render", "out", *BARE, "--nodes", "2", "--name", project.named("ci"), script)
    try:
        assert _compose(tmp_path / "out", "up", "--detach").returncode == 0
        assert _compose(tmp_path / "out", "wait", "master").returncode == code
    finally:
        _compose(tmp_path / "out", "down")


def _compose(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "compose", *argv], cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_a_detached_run_is_waited_for_and_ended_from_outside(project: Project) -> None:
    script = project.write("train.py", PAUSES)
    started = project.run("up", *BARE, "--nodes", "2", "--name", project.named("away"), "--detach", script)
    assert started.status == 0, started.stderr
    assert started.stdout.strip() == project.named("away")
    with project.start("wait", "--run", project.named("away")) as waiting:
        down = project.run("down", "--run", project.named("away"))

        assert down.status == 0, down.stderr
        assert waiting.wait(PATIENCE_S) == 130


def test_the_nodes_of_a_failed_run_are_kept_until_down(project: Project) -> None:
    script = project.write("wrong.py", "raise SystemExit(3)\n")
    kept = project.run("up", *BARE, "--name", project.named("kept"), "--keep=failed", script)
    assert kept.status == 1, kept.stderr
    assert len(containers_of(project.named("kept"))) == 3

    assert project.run("down", "--run", project.named("kept")).status == 0


def test_nodes_are_hosts_of_their_own_with_no_privilege(project: Project) -> None:
    script = project.write(
        "look.py",
        "import os, socket\n"
        "status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)\n"
        "print(socket.gethostname(), status['CapEff'], status['NoNewPrivs'], os.stat('.').st_uid == os.getuid(), os.getcwd())\n"
        "try: open('/usr/x', 'w')\nexcept OSError as error: print(error.strerror)\n",
    )
    outcome = project.run("up", *BARE, "--nodes", "1", "--engine", "docker", script)

    assert outcome.stdout.splitlines()[0] == f"node-0 | node-0 0000000000000000 1 True {project.folder}"
    assert outcome.stdout.splitlines()[1] == "node-0 | Read-only file system"


REACHES = """
import fcntl, os, socket, struct
def address(of): return fcntl.ioctl(socket.socket(), of, struct.pack("256s", b"eth0"))[20:24]
def reaches(host, port):
    with socket.socket() as end:
        end.settimeout(3)
        return end.connect_ex((host, port)) == 0
SIOCGIFADDR = 0x8915
gateway = socket.inet_ntoa(address(SIOCGIFADDR)[:3] + bytes([1]))
with socket.create_server(("", 5000)) as server:
    if os.environ["RANK"] == "0":
        server.accept()
    else:
        while not reaches("node-0", 5000): pass
        print("gateway", reaches(gateway, int(os.environ["PORT"])), flush=True)
        print("metadata", reaches("169.254.169.254", 80), flush=True)
"""


@pytest.mark.parametrize(
    ("network", "expected"),
    [("isolated", ["gateway False", "metadata False"]), ("full", ["gateway True"])],
)
def test_nodes_reach_this_machine_only_on_a_full_network(project: Project, network: str, expected: list[str]) -> None:
    script = project.write("train.py", REACHES)
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        name = project.named(network)
        words = ["--network", network, "--name", name, "--env", f"PORT={port}", "--json", script]
        outcome = project.run("up", *BARE, "--nodes", "2", *words)

    assert outcome.status == 0
    assert project.log_of(name, "node-1.1").splitlines()[: len(expected)] == expected
