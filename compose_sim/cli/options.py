"""How do flags become a ClusterSpec? `up`, `plan` and `render` take the same ones; those given win over `composesim.yaml`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click

from compose_sim import assets
from compose_sim.core.inventory import Host
from compose_sim.core.plan import Mount, Plan, Program, make_plan, portable_program
from compose_sim.core.spec import ClusterSpec
from compose_sim.core.specfile import make_spec, parse_spec_text
from compose_sim.engine.inspect import inspect_host
from compose_sim.errors import SpecError

SPEC_FILE = "composesim.yaml"
DEFAULT_SCRIPT = "composesim.default_script"  # whether a leading -- says that all words are the default script's
_MODULE_FLAGS = ("-m", "--module")

_OPTIONS = (
    click.option("--nodes", metavar="N", help="Number of nodes.  [default: 2]"),
    click.option("--nproc-per-node", metavar="M", help="Ranks on each node.  [default: 1]"),
    click.option("--engine", metavar="auto|docker|local", help="What executes the nodes."),
    click.option("--image", metavar="auto|host|TAG", help="Image of the nodes; host is this machine's own Python."),
    click.option("--python", metavar="PATH", help="Python interpreter that the nodes run."),
    click.option("--backend", metavar="auto|nccl|gloo", help="torch.distributed backend to set nodes up for."),
    click.option("--launcher", metavar="warm|torchrun|env", help="How ranks are started on a node."),
    click.option("--master", metavar="service|node-0", help="Who answers at MASTER_ADDR."),
    click.option("--master-port", metavar="PORT", help="MASTER_PORT of the first round."),
    click.option("--max-restarts", metavar="N", help="New rounds after a failed or lost node.  [default: 0]"),
    click.option("--env", multiple=True, metavar="K=V", help="Environment variable of every node; K alone takes ours."),
    click.option("--env-file", multiple=True, metavar="FILE", help="File of environment variables."),
    click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", help="Folder or file that nodes see."),
    click.option("--memory", metavar="SIZE", help="Memory limit of each node, such as 2g."),
    click.option("--cpus", metavar="N", help="CPUs each node may use, such as 0.5."),
    click.option("--shm-size", metavar="SIZE", help="Size of /dev/shm in each node.  [default: 1g]"),
    click.option("--subnet", metavar="CIDR", help="Subnet of the run's network."),
    click.option("--timeout", metavar="TIME", help="Stop the run after this time, such as 10m."),
    click.option("--name", metavar="RUN", help="Name of the run."),
    click.option("-f", "--file", "file", type=click.Path(path_type=Path), help=f"Spec file.  [default: {SPEC_FILE}]"),
    click.option("-m", "--module", metavar="MODULE", help="Run a module instead of a script."),
    click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]..."),
)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All options that describe a cluster; the verb gets them as keywords."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)


class ClusterCommand(click.Command):
    """A command whose options stop at SCRIPT, or behind `-m MODULE`: what follows is the program's own, as with torchrun."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End the options behind a module's name, where click would go on."""
        count = self.count_options(args)
        ctx.meta.setdefault(DEFAULT_SCRIPT, args[count : count + 1] == ["--"])
        names_module = count >= 2 and args[count - 2] in _MODULE_FLAGS
        return super().parse_args(ctx, [*args[:count], "--", *args[count:]] if names_module else args)

    def count_options(self, args: list[str]) -> int:
        """How many of the first words are options and their values, up to and with a module's name."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        count = 0
        while count < len(args) and args[count].startswith("-") and args[count] != "--":
            word = args[count]
            count += 1 if word in flags or word in ("-h", "--help") or "=" in word else 2
            if word in _MODULE_FLAGS:
                break
        return min(count, len(args))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the person asked for, read and checked: the spec, and what lies around it."""

    spec: ClusterSpec
    folder: Path  # the project: mounted on all nodes, and where `.composesim` lies
    dotenv: str  # the text of `.env` beside the spec
    variables: Mapping[str, str]  # the variables of `.env` and of the env files

    def plan(
        self, *, run: str, run_folder: Path, host: Host | None = None, portable: bool = False
    ) -> tuple[Plan, Host]:
        """The plan for this machine as it is now."""
        with_docker = self.spec.engine != "local" and not portable
        host = host or inspect_host(self.folder, python=self.spec.python, with_docker=with_docker)
        program = find_program(self.spec, self.folder)
        plan = make_plan(
            self.spec,
            host,
            run=run,
            run_folder=str(run_folder),
            program=portable_program(program) if portable else program,
            dotenv=self.variables,
            portable=portable,
        )
        return plan, host


def read_request(*, file: Path | None, program: tuple[str, ...], **flags: Any) -> Request:
    """Flags and `composesim.yaml` as one Request; SpecError (exit 2) says which flag, or which line and key, is wrong."""
    folder = Path(os.path.abspath(file.parent if file else "."))
    dotenv_file = folder / ".env"
    dotenv = dotenv_file.read_text() if dotenv_file.is_file() else ""
    variables = _parse_dotenv(dotenv)
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if "env" in given:
        given["env"] = dict(map(_env_flag, given["env"]))
    if program:
        # After -m or a leading -- every word is an argument; else the first one is the script.
        only_arguments = "module" in given or click.get_current_context().meta[DEFAULT_SCRIPT]
        given |= {"args": program} if only_arguments else {"script": program[0], "args": program[1:]}
    values = parse_spec_text(*_spec_text(file, folder), variables={**variables, **os.environ})
    spec = make_spec(values, given)
    for name in spec.env_file:
        path = folder / name
        if not path.is_file():
            raise SpecError(
                f"the env file '{name}' does not exist in '{folder}'", hint="leave --env-file out, or create it"
            )
        variables |= _parse_dotenv(path.read_text())
    for mount in spec.mounts:
        source = folder / Path(mount.split(":")[0]).expanduser()
        if not source.exists():
            raise SpecError(f"the source '{source}' of mount '{mount}' does not exist", hint=f"mkdir -p {source}")
    return Request(spec=spec, folder=folder, dotenv=dotenv, variables=variables)


def find_program(spec: ClusterSpec, folder: Path) -> Program:
    """The script or module to run, checked to be one; `train_ddp.py` of composesim where none is named."""
    own = Mount(source=str(folder), target=str(folder))
    if spec.module:
        return Program(target=spec.module, is_module=True, arguments=spec.args, folder=str(folder), mounts=(own,))
    named = spec.script or ("train_ddp.py" if (folder / "train_ddp.py").is_file() else None)
    script = Path(named) if named else assets.root() / "train_ddp.py"
    path = folder / script
    _check_script(path, str(script))
    if path.resolve().is_relative_to(folder.resolve()):
        return Program(target=str(script), arguments=spec.args, folder=str(folder), mounts=(own,))
    beside = Mount(source=str(path.parent), target=str(path.parent), read_only=True)
    return Program(target=str(script), arguments=spec.args, folder=str(folder), mounts=(own, beside))


def new_name(spec: ClusterSpec) -> str:
    """The run's name: the person's, or the script's with four random digits."""
    if spec.name:
        return spec.name
    stem = (spec.module or Path(spec.script or "train_ddp").stem).rpartition(".")[2].lower()
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-")[:40]
    return f"{plain or 'run'}-{secrets.token_hex(2)}"


def _check_script(path: Path, name: str) -> None:
    if not path.exists():
        near = sorted(each.name for each in path.parent.glob("*.py"))[:5] if path.parent.is_dir() else []
        raise SpecError(
            f"the script '{name}' does not exist",
            evidence=f"in '{path.parent}' there is: {', '.join(near)}" if near else "",
            hint="composesim init writes one to start from",
        )
    if not path.is_file():
        raise SpecError(f"the script '{name}' is not a file", hint="composesim up -m MODULE runs a package")
    try:
        compile(path.read_bytes(), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{name}, line {error.lineno}: {(error.text or '').strip()}"
        raise SpecError(
            f"the script '{name}' is not valid Python: {error.msg}", evidence=where, hint=f"python -m py_compile {name}"
        ) from None
    except ValueError as error:
        raise SpecError(f"the script '{name}' is not Python source: {error}") from None


def _spec_text(file: Path | None, folder: Path) -> tuple[str, str]:
    path = file or folder / SPEC_FILE
    if path.is_file():
        return path.read_text(), str(file or SPEC_FILE)
    if file:
        raise SpecError(f"the spec file '{file}' does not exist", hint="composesim init writes one to start from")
    return "", SPEC_FILE


def _env_flag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise SpecError(
            f"--env '{name}' has no value, and there is no such variable to take it from", hint=f"--env {name}=VALUE"
        )
    return name, os.environ[name]


def _parse_dotenv(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    from io import StringIO

    from dotenv import dotenv_values

    return {name: value or "" for name, value in dotenv_values(stream=StringIO(text)).items()}
