"""What the containers of a run may do: section 5 of the CIS Docker Benchmark, as docs/hardening.md answers it, and an open network."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compose_sim.core.plan.model import NOBODY
from tests.builders import PATIENCE_S, ROOT
from tests.scenarios.conftest import BARE, Project, project_in, wait_for_line

pytestmark = [pytest.mark.docker, pytest.mark.train]

# Prints how connections to this machine and to the metadata address of a cloud end: 0 if they are accepted.
REACHES = """
import os, signal, socket
def answer(host, port):
    with socket.socket() as end:
        end.settimeout(5)
        return end.connect_ex((host, port))
gateway = socket.gethostbyname("node-0").rpartition(".")[0] + ".1"
store = socket.create_server(("", 29500))
print("answers", answer(gateway, int(os.environ["PORT"])), answer("169.254.169.254", 80), flush=True)
while True:
    signal.pause()
"""
REFUSED = 111
SENSITIVE = re.compile(r"/(boot|dev|etc|lib|proc|root|sys)?|/home(/[^/]+)?")


def of_host(name: str, *allowed: Any) -> Callable[[dict[str, Any]], bool]:
    """The container's setting of that name is one of these."""
    return lambda container: container["HostConfig"][name] in allowed


RULES: dict[str, Callable[[dict[str, Any]], bool]] = {  # takes a container, as `docker inspect` prints it
    "capabilities": lambda it: it["HostConfig"]["CapDrop"] == ["ALL"] and not it["HostConfig"]["CapAdd"],
    "privileged": of_host("Privileged", False),
    "sensitive folders": lambda it: not [each for each in it["Mounts"] if SENSITIVE.fullmatch(each.get("Source", ""))],
    "privileged ports": lambda it: all(port >= 1024 for _, port in published(it)),
    "network of the machine": lambda it: it["HostConfig"]["NetworkMode"].startswith(("composesim-", "container:")),
    "memory limit": lambda it: it["HostConfig"]["Memory"] > 0,
    "CPU limit": lambda it: it["HostConfig"]["NanoCpus"] > 0,
    "read-only root": of_host("ReadonlyRootfs", True),
    "published on 127.0.0.1": lambda it: all(address == "127.0.0.1" for address, _ in published(it)),
    "restarts": lambda it: it["HostConfig"]["RestartPolicy"]["Name"] in ("", "no"),
    "process ids of the machine": of_host("PidMode", ""),
    "shared memory of the machine": of_host("IpcMode", "private"),
    "devices": of_host("Devices", None, []),
    "ulimits": of_host("Ulimits", None, []),
    "mount propagation": lambda it: all(each["Propagation"] in ("rprivate", "") for each in it["Mounts"]),
    "host name of the machine": of_host("UTSMode", ""),
    "seccomp, no new privileges": of_host("SecurityOpt", ["no-new-privileges:true"]),
    "cgroup": of_host("CgroupParent", ""),
    "limit of processes": lambda it: 0 < it["HostConfig"]["PidsLimit"] <= 4096,
    "bridge of Docker": lambda it: it["HostConfig"]["NetworkMode"] not in ("default", "bridge"),
    "users of the machine": of_host("UsernsMode", ""),
    "socket of Docker": lambda it: not [each for each in it["Mounts"] if "docker.sock" in each.get("Source", "")],
}


def published(container: dict[str, Any]) -> list[tuple[str, int]]:
    """The address and the port of this machine that lead to each published port."""
    bound = (each for each in container["NetworkSettings"]["Ports"].values() if each)
    return [(each["HostIp"], int(each["HostPort"])) for bindings in bound for each in bindings]


def firewall_of(run: str) -> list[str]:
    """The rules of a run in both kinds of tables."""
    kinds = [kind for kind in ("iptables-nft", "iptables-legacy") if shutil.which(kind)]
    shown = "".join(subprocess.run([kind, "-S"], capture_output=True, text=True).stdout for kind in kinds)
    return [line for line in shown.splitlines() if f"composesim:{run}" in line]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    yield from project_in(tmp_path_factory.mktemp("containers"))


@pytest.fixture(scope="module")
def answers(project: Project) -> Iterator[str]:
    """What a node on an open network printed; the run goes on."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        words = (*BARE, "--engine", "docker", "--nodes", "1", "--name", project.named("rules"))
        with project.start("up", *words, "--env", f"PORT={port}", project.write("look.py", REACHES)) as process:
            wait_for_line(process, "answers")
            yield project.log_of(project.named("rules"), "node-0.0")
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    assert firewall_of(project.named("rules")) == []


@pytest.fixture(scope="module")
def containers(project: Project, answers: str) -> dict[str, dict[str, Any]]:
    """The containers of that run, by service."""
    listed = subprocess.run(
        ["docker", "ps", "--quiet", "--filter", f"label=composesim.run={project.named('rules')}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    shown = subprocess.run(["docker", "inspect", *listed], capture_output=True, text=True, check=True).stdout
    return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in json.loads(shown)}


@pytest.mark.parametrize("name", RULES)
def test_a_container_keeps_a_rule_of_section_5(name: str, containers: dict[str, dict[str, Any]]) -> None:
    assert containers.keys() == {"master", "node-0"}
    assert [service for service, container in containers.items() if not RULES[name](container)] == []


def test_the_page_answers_each_rule() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| (yes|no) \|", (ROOT / "docs" / "hardening.md").read_text(), re.MULTILINE)

    assert {name for name, held in rows if held == "yes"} >= RULES.keys()


def test_an_open_network_leads_neither_to_this_machine_nor_to_the_metadata_of_a_cloud(answers: str) -> None:
    assert answers.split() == ["answers", str(REFUSED), str(REFUSED)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_only_root_reaches_the_ports_of_nodes_from_this_machine(containers: dict[str, dict[str, Any]]) -> None:
    (network,) = containers["node-0"]["NetworkSettings"]["Networks"].values()
    opens = ["bash", "-c", f"echo > /dev/tcp/{network['IPAddress']}/29500"]

    assert subprocess.run(opens).returncode == 0
    others = subprocess.run(opens, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True)
    assert (others.returncode, "Connection refused" in others.stderr) == (1, True)
