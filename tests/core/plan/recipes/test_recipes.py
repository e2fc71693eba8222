"""What each recipe starts on the master and on nodes."""

from __future__ import annotations

import pytest

from compose_sim.core.plan.model import Mount, Plan, Program, portable_program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from tests.builders import a_host, a_plan

OWN = Mount(source="/home/ada/project", target="/home/ada/project")
COMMAND = Program(target="mpirun", arguments=("-n", "2"), is_command=True, folder="/home/ada/project", mounts=(OWN,))


def a_command_plan(**spec: object) -> Plan:
    """Return the plan of `up --recipe exec -- mpirun -n 2` with changes to the spec."""
    cluster = ClusterSpec.model_validate({"recipe": "exec", "args": ("mpirun", "-n", "2"), **spec})
    return make_plan(cluster, a_host(), run="demo", run_folder="/runs/demo", program=COMMAND)


def test_a_command_is_run_as_it_is_and_brings_its_own_store() -> None:
    plan = a_command_plan()

    assert plan.nodes[1].command[-4:] == ("--", "mpirun", "-n", "2")
    assert plan.nodes[1].command[2:6] == ("agent", "--launcher", "command", "--")
    assert "--no-store" in plan.master.command
    assert plan.launcher == "command"


def test_a_script_finds_its_store_at_the_master_unless_its_first_rank_listens() -> None:
    served, own = a_plan(), a_plan(master="node-0")

    assert "--no-store" not in served.master.command
    assert "--no-store" in own.master.command
    assert own.nodes[0].command == served.nodes[0].command, "the first node of each round is told by the master"


def test_a_command_is_shown_no_emulated_gpus() -> None:
    plan = a_command_plan()

    assert "COMPOSESIM_EMULATED_GPUS" not in plan.nodes[0].environment
    assert next(choice for choice in plan.choices if choice.what == "gpus").value == "none"
    with pytest.raises(SpecError, match="recipe 'exec' does not support emulated GPUs"):
        a_command_plan(gpus="emulated")


def test_a_launcher_of_python_scripts_is_refused_for_commands() -> None:
    with pytest.raises(SpecError, match="'torchrun' does not apply to recipe 'exec'"):
        a_command_plan(launcher="torchrun")


def test_a_command_keeps_its_name_in_a_rendered_folder() -> None:
    """The command is looked up on the node; only the files around it are copied."""
    assert portable_program(COMMAND).target == "mpirun"
