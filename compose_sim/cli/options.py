"""How do flags become a ClusterSpec? `up`, `check`, `plan` and `render` take the same; those given win over the spec file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click

from compose_sim.app.program import find_program
from compose_sim.cli.cluster_command import DEFAULT_SCRIPT
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan, portable_program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.plan.recipes import BUILT_IN
from compose_sim.core.plan.services import needed_packages
from compose_sim.core.request.spec import CheckSpec, ClusterSpec, check_environment
from compose_sim.core.request.spec_file import make_spec, parse_spec_text
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.errors import SpecError

SPEC_FILE = "composesim.yaml"
PROJECT_FILE = "pyproject.toml"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the person asked for, read and checked: the spec, and what lies around it."""

    spec: ClusterSpec
    folder: Path  # the project: mounted on all nodes, and where `.composesim` lies
    dotenv: str  # the text of `.env` beside the spec
    dotenv_variables: Mapping[str, str]
    env_files: Mapping[str, str]  # the variables of `--env-file`
    remark: str = ""  # what the person should be told of how it was read

    def plan(
        self, *, run: str, run_folder: Path, portable: bool = False, changes: Mapping[str, Any] | None = None
    ) -> tuple[Plan, Host]:
        """The plan for this machine as it is now; `changes` are fields of the spec that this plan has otherwise."""
        spec = self.spec.model_copy(update=dict(changes or {}))
        with_docker = spec.engine != "local" and not portable
        recipe = find_recipe(spec.recipe)
        packages = {**recipe.PACKAGES, **needed_packages(spec.services)}
        with_ports = not portable and bool(spec.services or spec.publish or recipe.DRIVEN)
        host = inspect_host(
            self.folder, python=spec.python, packages=packages, with_docker=with_docker, with_ports=with_ports
        )
        program = find_program(spec, recipe, self.folder)
        plan = make_plan(
            spec,
            host,
            run=run,
            run_folder=str(run_folder),
            program=portable_program(program) if portable else program,
            recipe=recipe,
            dotenv=self.dotenv_variables,
            env_files=self.env_files,
            portable=portable,
        )
        return plan, host


def read_request(
    *, file: Path | None, program: tuple[str, ...], defaults: Mapping[str, Any] | None = None, **flags: Any
) -> Request:
    """
    Flags and `composesim.yaml` as one Request; `defaults`, keys of a spec file, win over the file, and flags over both.

    SpecError (exit 2) says which flag, or which line and key, is wrong.
    """
    folder = Path(os.path.abspath(file.parent if file else "."))
    dotenv_file = folder / ".env"
    dotenv = _read(dotenv_file) if dotenv_file.is_file() else ""
    dotenv_variables = _parse_dotenv(dotenv, ".env")
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
    text, source, remark = _spec_text(file, folder)
    values = parse_spec_text(text, source, variables={**dotenv_variables, **os.environ})
    spec = make_spec({**values, **(defaults or {})}, given)
    env_files: dict[str, str] = {}
    for name in spec.env_file:
        if not (folder / name).is_file():
            raise SpecError(
                f"the env file '{name}' does not exist in '{folder}'", hint="leave --env-file out, or create it"
            )
        env_files |= _parse_dotenv(_read(folder / name), name)
    spec = spec.model_copy(update={"mounts": tuple(_absolute_mount(mount, folder) for mount in spec.mounts)})
    return Request(
        spec=spec,
        folder=folder,
        dotenv=dotenv,
        dotenv_variables=dotenv_variables,
        env_files=env_files,
        remark=remark,
    )


def _spec_text(file: Path | None, folder: Path) -> tuple[str, str, str]:
    """The text of the spec file, its name, and a remark where two files could be meant."""
    own, project = file or folder / SPEC_FILE, folder / PROJECT_FILE
    table = not file and project.is_file() and "[tool.composesim" in (text := _read(project))
    if own.is_file():
        remark = f"{SPEC_FILE} is read; [tool.composesim] in {PROJECT_FILE} is not" if table else ""
        return _read(own), str(file or SPEC_FILE), remark
    if file:
        raise SpecError(f"the spec file '{file}' does not exist", hint="composesim init writes one to start from")
    return (text, PROJECT_FILE, "") if table else ("", SPEC_FILE, "")


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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, PermissionError) as error:
        raise SpecError(f"'{path}' cannot be read: {error}", hint=f"file {path}") from None


def _absolute_mount(mount: str, folder: Path) -> str:
    """The mount with its source as nodes' engine must name it; SpecError where there is no such thing."""
    named, *rest = mount.split(":")
    source = folder / Path(named).expanduser()
    if not source.exists():
        raise SpecError(f"the source '{source}' of mount '{mount}' does not exist", hint=f"mkdir -p {source}")
    return ":".join([os.path.abspath(source), *rest])


def _parse_dotenv(text: str, name: str) -> dict[str, str]:
    if not text.strip():
        return {}
    from io import StringIO

    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    for binding in parse_stream(StringIO(text)):
        if binding.error:
            raise SpecError(
                f"{name}, line {binding.original.line}: '{binding.original.string.strip()}' is not NAME=value",
                hint=f"mend {name}; a line of words starts with #",
            )
    values = {key: value or "" for key, value in dotenv_values(stream=StringIO(text)).items()}
    try:
        return check_environment(values)
    except ValueError as error:
        raise SpecError(f"{name}: {error}") from None
