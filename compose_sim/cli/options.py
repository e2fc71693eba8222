"""Turn flags into a request; the flags win over the spec file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import click

from compose_sim.app.request import SPEC_FILE, Request, read_request
from compose_sim.cli.cluster_command import DEFAULT_SCRIPT
from compose_sim.core.plan.recipes import BUILT_IN
from compose_sim.core.request.spec import CheckSpec
from compose_sim.errors import SpecError

_OPTIONS = (
    click.option("--nodes", metavar="N", help="Number of nodes.  [default: 2]"),
    click.option("--nproc-per-node", metavar="M", help="Ranks on each node.  [default: 1]"),
    click.option(
        "--recipe", metavar="NAME", help=f"How the framework starts: {', '.join(BUILT_IN)}. exec runs: -- CMD ARGS."
    ),
    click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Option of the recipe."),
    click.option(
        "--timeline", is_flag=True, default=None, help="Record Horovod's timeline, and say what time went into."
    ),
    click.option(
        "--fusion-threshold", metavar="SIZE", help="Horovod reduces tensors together up to this, such as 64m."
    ),
    click.option("--cycle-time", metavar="MS", help="Milliseconds between Horovod's rounds of reductions, such as 1."),
    click.option("--mpi", is_flag=True, default=None, help="Horovod over MPI instead of gloo."),
    click.option("--engine", metavar="auto|docker|local", help="What executes the nodes."),
    click.option("--image", metavar="auto|host|TAG", help="Image of the nodes; host is this machine's own Python."),
    click.option("--python", metavar="PATH", help="Python interpreter that the nodes run."),
    click.option("--backend", metavar="auto|nccl|gloo", help="torch.distributed backend to set nodes up for."),
    click.option(
        "--gpus",
        metavar="auto|all|0,1|UUID|none|emulated",
        help="GPUs nodes see; auto emulates CUDA where there is none.",
    ),
    click.option("--gpus-per-node", metavar="K", help="GPUs of each node.  [default: as many as it has ranks]"),
    click.option("--share", metavar="auto|mps|timeslice|off", help="How ranks share a GPU."),
    click.option("--gpu-memory", metavar="SIZE", help="GPU memory each rank may take, such as 8g."),
    click.option("--launcher", metavar="warm|torchrun|env", help="How ranks are started on a node."),
    click.option("--master", metavar="service|node-0", help="Who answers at MASTER_ADDR."),
    click.option("--master-port", metavar="PORT", help="MASTER_PORT of the first round."),
    click.option("--max-restarts", metavar="N", help="New rounds after a failed or lost node.  [default: 0]"),
    click.option("--elastic", metavar="MIN:MAX", help="Go on while nodes leave and come back, such as 2:4."),
    click.option("--link", multiple=True, metavar="SHAPE", help="Shape of links, such as 1gbit,20ms,loss=0.1%."),
    click.option("--scratch", metavar="SIZE", help="A disk of its own at /scratch in each node, such as 64m."),
    click.option(
        "--with", multiple=True, metavar="NAMES", help="Run beside the nodes: jupyter,tensorboard,prometheus,grafana."
    ),
    click.option("--publish", multiple=True, metavar="NAME=PORT", help="Port of this machine for what opens there."),
    click.option("--env", multiple=True, metavar="K=V", help="Environment variable of every node; K alone takes ours."),
    click.option("--env-file", multiple=True, metavar="FILE", help="File of environment variables."),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", help="Folder or file that nodes see."),
    click.option("--memory", metavar="SIZE", help="Memory limit of each node, such as 2g."),
    click.option("--cpus", metavar="N", help="CPUs each node may use, such as 0.5."),
    click.option("--shm-size", metavar="SIZE", help="Size of /dev/shm in each node.  [default: 1g]"),
    click.option("--subnet", metavar="CIDR", help="Subnet of the run's network."),
    click.option("--timeout", metavar="TIME", help="Stop the run after this time, such as 10m."),
    click.option(
        "--hang-timeout", metavar="TIME", help="Stop the run when no rank has moved for so long.  [default: 5m]"
    ),
    click.option("--name", metavar="RUN", help="Name of the run."),
    click.option("-f", "--file", "file", type=click.Path(path_type=Path), help=f"Spec file.  [default: {SPEC_FILE}]"),
    click.option("-m", "--module", metavar="MODULE", help="Run a module instead of a script."),
    click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]..."),
)

# Options of recipes that have a flag of their own: `--mpi` is `--option mpi=on`.
_RECIPE_FLAGS = {
    "timeline": "timeline",
    "fusion_threshold": "fusion-threshold",
    "cycle_time": "cycle-time",
    "mpi": "mpi",
}


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All options that describe a cluster; the verb gets them as keywords."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)


def request_from_flags(
    *, file: Path | None, program: tuple[str, ...], defaults: Mapping[str, Any] | None = None, **flags: Any
) -> Request:
    """
    Return the request of a command line and of the spec file that it names.

    `defaults` replace values of the file; flags replace both. Raises SpecError (exit 2) that names the flag, or the line and key.
    """
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    check = {name: given.pop(name) for name in CheckSpec.model_fields if name in given}
    given |= {"check": check} if check else {}
    if "env" in given:
        given["env"] = dict(map(_env_flag, given["env"]))
    if "options" in given:
        given["options"] = dict(_named_value(text, "--option") for text in given["options"])
    if of_recipe := {name: given.pop(flag) for flag, name in _RECIPE_FLAGS.items() if flag in given}:
        values = {name: "on" if value is True else value for name, value in of_recipe.items()}
        given["options"] = {**given.get("options", {}), **values}
    if "publish" in given:
        given["publish"] = dict(_named_value(text, "--publish") for text in given["publish"])
    if program:
        # After -m or a leading -- every word is an argument; else the first one is the script.
        only_arguments = "module" in given or click.get_current_context().meta[DEFAULT_SCRIPT]
        given |= {"args": program} if only_arguments else {"script": program[0], "args": program[1:]}
    return read_request(given, file=file, defaults=defaults)


def _named_value(text: str, flag: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"{flag} '{name}' has no value", hint=f"{flag} {name}=VALUE")
    return name, value


def _env_flag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise SpecError(
            f"--env '{name}' has no value, and there is no such variable to take it from", hint=f"--env {name}=VALUE"
        )
    return name, os.environ[name]
