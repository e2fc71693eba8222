"""What Paddle's recipes start, what they refuse, and how messages from the nodes are interpreted."""

from __future__ import annotations

import pytest

from compose_sim.core.checks import Case
from compose_sim.core.checks.run import run_checks, why_no_check
from compose_sim.core.events.observations import Observed
from compose_sim.core.host.host import Host, PythonFacts
from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.recipes import load_recipe
from compose_sim.core.request.names import RECIPE_NAMES
from compose_sim.core.verdict.hang import diagnose, standings_of
from compose_sim.core.verdict.verdict import find_deadlock, judge
from compose_sim.errors import EnvironmentMissingError, SpecError
from compose_sim.plugins.paddle import core as recipe
from compose_sim.plugins.paddle.node import driver
from tests.builders import a_host, a_plan, no_docker
from tests.core.story import Story
from tests.inventories import FOUR

CPU_BUILD = {"torch": "2.13.0", "ray": "2.60.0", "paddlepaddle": "3.3.1"}
SITE = "/usr/lib/python3/site-packages/paddle"


def a_host_with(packages: dict[str, str], **changes: object) -> Host:
    return a_host(python=PythonFacts(executable="/venv/bin/python", prefixes=("/venv",), packages=packages), **changes)


def the_plan(host: Host | None = None, **spec: object) -> Plan:
    return a_plan(host or a_host_with(CPU_BUILD), **{"recipe": "paddle", **spec})


def chosen(plan: Plan, what: str) -> tuple[str, str]:
    return next((choice.value, choice.why) for choice in plan.choices if choice.what == what)


def test_nodes_meet_in_rounds_and_paddle_brings_its_own_store() -> None:
    plan = the_plan(args=("--epochs", "2"))

    assert plan.nodes[1].command[2:] == ("agent", "--launcher", "paddle", "--", "train.py", "--epochs", "2")
    assert "--no-store" in plan.master.command
    assert plan.environment["PORT_RANGE"] == "29501:29600", "beside MASTER_PORT, where Paddle's own master is"


def test_on_this_machine_ports_are_those_that_are_free() -> None:
    plan = the_plan(engine="local")

    assert plan.nodes[0].command[2:7] == ("agent", "--launcher", "paddle", "--master-address", "127.0.0.1")
    assert "PORT_RANGE" not in plan.environment


def test_an_elastic_range_is_for_the_masters_rounds() -> None:
    command = the_plan(elastic="2:4").master.command

    assert command[command.index("--min-nodes") + 1] == "2"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"launcher": "torchrun"}, "--launcher 'torchrun' does not apply to recipe 'paddle'"),
        ({"master": "node-0"}, "Paddle's launcher brings its own store"),
        ({"gpus": "emulated"}, "recipe 'paddle' does not support emulated GPUs"),
        ({"options": {"color": "red"}}, "recipe 'paddle' has no option 'color'"),
    ],
)
def test_what_is_torchs_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        the_plan(**asked)


@pytest.mark.parametrize(
    ("packages", "message"),
    [({"torch": "2.13.0"}, "has no paddlepaddle"), ({"paddlepaddle": "2.6.2"}, r"paddlepaddle 3.0 \(it has 2.6.2\)")],
)
def test_a_python_without_a_paddle_that_will_do(packages: dict[str, str], message: str) -> None:
    """With the local engine there is no other Python; with Docker, the image that composesim builds is used."""
    with pytest.raises(EnvironmentMissingError, match=message) as raised:
        the_plan(a_host_with(packages, docker=no_docker()), engine="local")

    assert "composesim image build --recipe paddle" in raised.value.hint
    assert the_plan(a_host_with(packages)).image == "composesim-paddle:latest"


def test_nodes_ask_for_the_same_paddle_as_the_plan() -> None:
    assert recipe.PACKAGES == {"paddlepaddle": driver.OLDEST}


def test_a_paddle_for_cpus_is_given_no_gpu_whatever_torch_there_is() -> None:
    """The CUDA version of torch is irrelevant for Paddle."""
    for_cpus = the_plan(a_host_with(CPU_BUILD, gpus=FOUR))
    for_gpus = the_plan(a_host_with({**CPU_BUILD, "paddlepaddle-gpu": "3.3.1"}, gpus=FOUR))

    assert chosen(for_cpus, "gpus") == ("none", "the nodes' paddle was built without CUDA")
    assert all(node.gpus is None for node in for_cpus.nodes)
    assert all(node.gpus and len(node.gpus.uuids) == 1 for node in for_gpus.nodes)
    assert for_gpus.backend == "nccl"


@pytest.mark.skipif("paddle-ray" not in RECIPE_NAMES, reason="Ray was deleted")
def test_paddle_in_ray_is_rays_cluster_with_a_look_for_paddle_first() -> None:
    plan = the_plan(recipe="paddle-ray", script="search.py")

    assert "paddle-driver" in plan.master.command
    assert "ray-member" in plan.nodes[0].command
    assert plan.is_driven
    assert set(load_recipe("paddle-ray").PACKAGES) == {"ray", "paddlepaddle"}
    assert plan.environment["RAY_AUTH_MODE"] == "token"


def test_a_node_that_cannot_start_its_ranks_says_why() -> None:
    """The cause is the message, not the exit code, and the hint has a command."""
    story = Story(the_plan()).starts(0.5, 0, 1).round(1.0, 0, 1)
    told = {"message": "port 29500 cannot be had: Address already in use", "hint": "ss -ltnp sport = :29500"}
    story.tell(2.0, "start-failed", 0, **told).ended(
        2.1, passed=False, reason="node-0 failed: it ended with exit code 94"
    )
    story.stopped(3.0, {0: 94, 1: 143})

    cause = judge(story.state).cause
    assert cause is not None
    assert (cause.kind, cause.node, cause.message) == ("start", "node-0", told["message"])
    assert cause.traceback == "Try: ss -ltnp sport = :29500"


def test_a_rank_waits_in_paddles_backward_pass_and_collectives() -> None:
    story = Story(the_plan(nodes=3)).starts(0.5, 0, 1, 2).round(1.0, 0, 1, 2).trains(2.0, 1, 5)
    inner = {
        0: [f"{SITE}/base/dygraph/tensor_patch_methods.py", 370, "backward"],
        1: [f"{SITE}/distributed/communication/all_reduce.py", 89, "all_reduce"],
    }
    for node, frame in inner.items():
        place = ["/home/ada/project/train.py", 40 + node, "train", ""]
        data = {"since_s": 20.0, "doing": "locked", "steps": 5, "place": place, "frames": [frame, place[:3]]}
        story.tell(30.0, "stalled", node, **data)
    own = ["/home/ada/project/train.py", 9, "train", "time.sleep(60)"]
    story.tell(30.0, "stalled", 2, since_s=20.0, doing="sleeping", steps=5, place=own, frames=[own[:3]])

    found = diagnose(standings_of(story.state), folder="/home/ada/project")

    assert found.rank == 2
    assert found.message == (
        "rank 2 on node-2 sleeps at train.py, line 9: `time.sleep(60)`, while rank 0 waits for it in backward (train.py, line 40)"
        " and rank 1 waits for it in all_reduce (train.py, line 41)"
    )


def test_a_rank_that_never_joins_is_told_in_paddles_words() -> None:
    story = Story(the_plan()).starts(0.5, 0, 1).round(1.0, 0, 1).tell(2.0, "environment", 0, torch=None, paddle="3.3.1")
    story.tell(2.1, "init", 0, phase="started", world_size=2).tell(2.2, "rank-exited", 1, exit_code=0, signal=None)

    found = find_deadlock(story.state)

    assert found is not None
    assert found.message == "rank 1 exited without calling init_parallel_env, where rank 0 waits for it"


def test_checks_of_torchs_scripts_are_not_applicable() -> None:
    """All checks except that for hangs, which applies to any program."""
    case = Case(observed=Observed(ranks={}), verdict="passed", why_not=why_no_check("paddle"))

    results = {result.id: result for result in run_checks(case)}

    assert results.pop("hang").status == "passed"
    assert {result.status for result in results.values()} == {"not-applicable"}
    assert {result.detail for result in results.values()} == {why_no_check("paddle")}
    assert why_no_check("warm") == ""
