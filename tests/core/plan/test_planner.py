"""The nodes, ranks and environments that follow from a spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from compose_sim.core.compose.document import render_settings
from compose_sim.core.host.host import DockerFacts, PythonFacts
from compose_sim.core.plan.model import Program, plan_from_dict, portable_program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import ComposesimError, EnvironmentMissingError, SpecError
from tests.builders import a_host, a_plan, no_docker

NO_TORCH = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",))


def test_ranks_follow_node_numbers() -> None:
    """Nodes of unequal size get consecutive ranks in node order."""
    plan = a_plan(nodes=[{"nproc_per_node": 2}, {}, {"nproc_per_node": 3}])

    assert [node.ranks for node in plan.nodes] == [(0, 1), (2,), (3, 4, 5)]
    assert plan.world_size == 6


def test_a_plan_comes_back_from_its_record() -> None:
    """plan.json holds everything that report and logs need."""
    plan = a_plan(nodes=3, env={"A": "1"}, memory="1g", mounts=["/data:/data:ro"])

    assert plan_from_dict(plan.to_dict()) == plan


def test_auto_takes_docker_where_it_answers() -> None:
    assert a_plan().engine == "docker"


def test_auto_falls_back_to_the_local_engine_and_says_why() -> None:
    plan = a_plan(a_host(docker=no_docker()))

    assert plan.engine == "local"
    assert "the docker command is not installed" in plan.choices[0].why


@pytest.mark.parametrize(
    "option",
    [
        {"memory": "1g"},
        {"cpus": 0.5},
        {"mounts": ["/a:/a"]},
        {"image": "torch:1"},
        {"subnet": "10.1.0.0/24"},
        {"scratch": "64m"},
    ],
)
def test_the_local_engine_refuses_what_it_cannot_simulate(option: dict[str, Any]) -> None:
    """Plain processes have no separate limits, mounts or network."""
    with pytest.raises(SpecError, match="the local engine does not support --"):
        a_plan(engine="local", **option)


def test_auto_without_docker_names_the_option_that_needs_it() -> None:
    with pytest.raises(
        EnvironmentMissingError, match="--memory needs the docker engine: the docker command is not installed"
    ):
        a_plan(a_host(docker=no_docker()), memory="1g")


def test_docker_asked_for_and_absent_is_an_environment_error() -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        a_plan(a_host(docker=no_docker("no Docker daemon answers at 'unix:///run/docker.sock'")), engine="docker")

    assert caught.value.exit_code == 4
    assert caught.value.hint == "make engine"


def test_without_torch_on_the_machine_auto_takes_the_built_image() -> None:
    plan = a_plan(a_host(python=NO_TORCH))

    assert (plan.image, plan.python) == ("composesim:latest", "python3")


@pytest.mark.parametrize(
    ("python", "spec", "hint"),
    [
        (NO_TORCH, {}, "/usr/bin/python3 -m pip install torch, or name "),
        (
            replace(NO_TORCH, takes_packages=False),
            {},
            "/usr/bin/python3 -m venv .venv && . .venv/bin/activate && pip install torch, ",
        ),
        (
            replace(NO_TORCH, has_pip=False),
            {},
            "/usr/bin/python3 -m ensurepip && /usr/bin/python3 -m pip install torch, ",
        ),
        (None, {}, "python3 -m pip install torch, or name "),
    ],
    ids=["venv", "system", "no pip", "no python"],
)
def test_without_torch_and_image_the_first_hint_installs_it_for_that_python(
    python: PythonFacts | None, spec: dict[str, Any], hint: str
) -> None:
    with pytest.raises(EnvironmentMissingError) as caught:
        a_plan(a_host(python=python, docker=replace(a_host().docker, images=())), **spec)

    assert caught.value.hint.startswith(hint)


def test_a_python_that_the_user_names_is_never_replaced_by_an_image() -> None:
    with pytest.raises(EnvironmentMissingError, match="/usr/bin/python3 has no torch"):
        a_plan(a_host(python=NO_TORCH), python="/usr/bin/python3")


def test_the_host_image_without_torch_is_refused() -> None:
    with pytest.raises(EnvironmentMissingError, match="/usr/bin/python3 has no torch"):
        a_plan(a_host(python=NO_TORCH), image="host")


def test_nccl_without_a_gpu_is_refused() -> None:
    with pytest.raises(SpecError, match="backend 'nccl' needs an NVIDIA GPU"):
        a_plan(backend="nccl")


def test_more_nodes_than_a_bridge_holds_are_refused_but_rendered() -> None:
    with pytest.raises(SpecError, match="1001 nodes are too many: a Linux bridge supports at most 1000"):
        a_plan(nodes=1001)

    assert len(a_plan(nodes=1001, portable=True).nodes) == 1001


def test_more_memory_than_the_machine_has_is_refused() -> None:
    with pytest.raises(SpecError, match="memory limit of 64 GiB exceeds this machine's 16 GiB"):
        a_plan(memory="64g")


def test_a_rootless_engine_gives_nodes_its_user_and_refuses_limits_that_it_cannot_set() -> None:
    """Its own user is user 0 in its containers; a rendered folder is for another machine."""
    host = a_host(docker=DockerFacts(available=True, reason="yes", rootless=True))

    settings = render_settings(a_plan(host), image="host")
    assert "COMPOSESIM_USER=0:0" in settings
    assert "COMPOSESIM_USER=1000:1000" in render_settings(a_plan(host, portable=True), image="host")
    for limit in ({"memory": "1g"}, {"cpus": 1}):
        with pytest.raises(EnvironmentMissingError, match="cannot limit"):
            a_plan(host, **limit)
    able = replace(host, docker=replace(host.docker, cpus=2, memory_bytes=16 << 30))
    assert a_plan(able, memory="1g", cpus=1).nodes[0].memory_bytes == 1 << 30


def test_a_disk_in_memory_must_fit_into_memory() -> None:
    """--scratch is in memory: in the machine's, and in the node's if that has a limit."""
    with pytest.raises(SpecError, match="4 disks of 8 GiB exceed this machine's 16 GiB of memory"):
        a_plan(nodes=4, scratch="8g")
    with pytest.raises(
        SpecError, match="a disk of 512 MiB takes up memory, and does not fit the node's limit of 512 MiB"
    ):
        a_plan(nodes=2, scratch="512m", memory="512m")

    plan = a_plan(scratch="64m", memory="512m")
    assert (plan.scratch_bytes, plan.environment["COMPOSESIM_SCRATCH"]) == (64 << 20, "/scratch")
    assert "COMPOSESIM_SCRATCH" not in a_plan().environment


def subnet_beside(*taken: str, **plan: Any) -> str | None:
    return a_plan(a_host(docker=DockerFacts(available=True, reason="yes", used_subnets=taken)), **plan).subnet


def test_a_free_subnet_is_chosen_beside_taken_ones() -> None:
    all_but_two = [f"10.{210 + number // 256}.{number % 256}.0/24" for number in range(512) if number not in (0, 7)]

    assert subnet_beside(*all_but_two) in ("10.210.0.0/24", "10.210.7.0/24")
    assert subnet_beside(*all_but_two, "10.210.7.0/24") == "10.210.0.0/24"


def test_runs_that_start_together_choose_other_subnets() -> None:
    subnets = {subnet_beside(run=f"train-{number}") for number in range(8)}

    assert len(subnets) == 8
    assert subnet_beside(run="train-3") in subnets


def test_a_large_cluster_gets_a_large_subnet() -> None:
    assert str(a_plan(nodes=1000).subnet).endswith("/22")


def test_a_taken_subnet_is_refused_with_the_network_that_has_it() -> None:
    docker = DockerFacts(available=True, reason="yes", used_subnets=("172.17.0.0/16",))

    with pytest.raises(SpecError, match=r"subnet '172\.17\.5\.0/24' overlaps '172\.17\.0\.0/16'"):
        a_plan(a_host(docker=docker), subnet="172.17.5.0/24")


def test_the_persons_environment_wins_over_ours() -> None:
    plan = a_plan(env={"OMP_NUM_THREADS": "7"})

    assert plan.environment["OMP_NUM_THREADS"] == "7"


def test_threads_are_shared_among_the_ranks_of_one_machine() -> None:
    assert a_plan(a_host(cpus=16), nodes=4).environment["OMP_NUM_THREADS"] == "4"


def test_every_node_is_a_host_of_its_own_for_nccl() -> None:
    plan = a_plan(nodes=3)

    assert len({node.environment["NCCL_HOSTID"] for node in plan.nodes}) == 3


def test_mounts_inside_other_mounts_of_the_environment_are_left_out() -> None:
    """A virtual environment under /usr is visible through /usr."""
    python = PythonFacts(executable="/usr/v/bin/python", prefixes=("/usr/v", "/usr"), packages={"torch": "2.13.0"})
    targets = [mount.target for mount in a_plan(a_host(python=python)).mounts]

    assert "/usr" in targets
    assert "/usr/v" not in targets


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"nodes": 0}, "greater than or equal to 1"),
        ({"nodes": -1}, "greater than or equal to 1"),
        ({"nodes": "abc"}, "'abc' is not a number of nodes"),
        ({"nodes": []}, "empty list"),
        ({"memory": "lots"}, "'lots' is not a size"),
        ({"timeout": "soon"}, "'soon' is not a duration"),
        ({"name": "Bad Name"}, "'Bad Name' is not a run name"),
        ({"env": {"1A": "x"}}, "'1A' is not a valid name for an environment variable"),
        ({"env": {"A": "a\0b"}}, "NUL"),
        ({"env": {"COMPOSESIM_RUN": "x"}}, "'COMPOSESIM_RUN' is reserved"),
        ({"args": ["\ud800"]}, "not valid UTF-8"),
        ({"mounts": ["data"]}, "'data' is not SOURCE:TARGET"),
        ({"mounts": ["a:b"]}, "must be an absolute path"),
        ({"script": "a.py", "module": "b"}, "cannot both run"),
        ({"subnet": "fd00::/64"}, "not an IPv4 network"),
    ],
)
def test_a_wrong_value_is_quoted(values: dict[str, Any], word: str) -> None:
    with pytest.raises((ValidationError, ComposesimError), match=word):
        ClusterSpec.model_validate(values)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train.py"),
        ("./sub/../train.py", "train.py"),
        ("/home/ada/project/sub/t.py", "sub/t.py"),
        ("../other/t.py", "t.py"),
    ],
)
def test_a_copied_script_has_one_name(script: str, name: str) -> None:
    """The file and the command of a rendered document agree, wherever the script was."""
    program = portable_program(Program(target=script, folder="/home/ada/project"))

    assert (program.target, program.folder) == (name, "/workspace")


def test_dotenv_stays_in_its_file_where_compose_reads_it() -> None:
    """Changing `.env` next to the document must change what nodes get."""
    own = Program(target="t.py", folder="/home/ada/project")
    told = {"dotenv": {"OMP_NUM_THREADS": "9", "EPOCHS": "3"}, "program": own, "run": "r", "run_folder": "/r"}
    docker = make_plan(ClusterSpec(), a_host(), **told)
    local = make_plan(ClusterSpec(engine="local"), a_host(), **told)

    assert {"OMP_NUM_THREADS", "EPOCHS"} & set(docker.environment) == set()
    assert (local.environment["OMP_NUM_THREADS"], local.environment["EPOCHS"]) == ("9", "3")
