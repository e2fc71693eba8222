"""Read a request: the program, the arguments of a command or a call, the spec file, `.env` and environment files."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shlex
import stat
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from compose_sim import assets
from compose_sim.core.host.host import Host
from compose_sim.core.plan.capacity import fit, plan_of_size
from compose_sim.core.plan.model import HIDDEN, Choice, Mount, Plan, Program, portable_program
from compose_sim.core.plan.mounts import CONTAINS_HOME, hides_system, is_private, why_dangerous
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.plan.recipes import Recipe
from compose_sim.core.plan.services import needed_packages
from compose_sim.core.request.field_types import check_environment
from compose_sim.core.request.job_files import READERS, JobFile
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import make_spec, parse_spec_text
from compose_sim.core.text import FOLDER_PREFIX, STDIN, nearest_file, without_temporary_folder
from compose_sim.engine.host.facts import inspect_host
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.engine.project_files import read_project_file, read_settings
from compose_sim.engine.project_owner import check_project
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import built_in

_LONGEST_LINE = 200  # of a script, as evidence
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
_PYTHON = re.compile(r"python[\d.]*")
_OF_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "GROUP_RANK",
)


def find_program(spec: ClusterSpec, recipe: Recipe, folder: Path) -> Program:
    """Return the program of a spec, or the recipe's example; raise SpecError if there is no such program."""
    own = Mount(source=str(folder), target=str(folder))
    if recipe.RUNS_COMMANDS:
        return _find_command(spec, folder, own)
    if spec.module:
        return Program(target=spec.module, is_module=True, arguments=spec.args, folder=str(folder), mounts=(own,))
    if not (spec.script or recipe.EXAMPLE):
        raise SpecError(f"recipe '{spec.recipe}' has no example of its own", hint="name a script behind the options")
    first = next(iter(spec.args), "")
    if not spec.script and first.endswith(".py"):
        raise SpecError(
            f"words after -- are arguments of the recipe's example, and '{first}' looks like a script",
            hint=f"composesim up {first if first[0] != '-' else f'./{first}'}",
        )
    script = _script_of(spec, recipe, folder)
    path = Path(os.path.abspath(folder / script))
    _check_no_launcher(str(script), path, spec.args)
    _check_script(path, str(script), folder)
    real = path.resolve()  # nodes must also see the target of a link that leads out of the project
    outside = {
        # An example of ours reads data in a folder above. Of a folder that nodes have privately they see only the script.
        assets.root() if at.parent in assets.examples() else at if is_private(str(at.parent)) else at.parent
        for at in (path, real)
        if is_private(str(at.parent)) or not (at.is_relative_to(folder) or at.is_relative_to(folder.resolve()))
    }
    besides = tuple(Mount(source=str(each), target=str(each), read_only=True) for each in sorted(outside))
    return Program(target=str(script), arguments=spec.args, folder=str(folder), mounts=(own, *besides))


def _script_of(spec: ClusterSpec, recipe: Recipe, folder: Path) -> Path:
    """Return the named script, or the recipe's example: from the folder, or else the shipped one of that name."""
    named = Path(spec.script or Path(recipe.EXAMPLE).name)
    ours = [each / named for each in assets.examples()] if spec.script else [assets.root() / recipe.EXAMPLE]
    is_elsewhere = len(named.parts) > 1 or (folder / named).exists()
    return next((path for path in ours if path.is_file() and not is_elsewhere), named)


def _find_command(spec: ClusterSpec, folder: Path, own: Mount) -> Program:
    """Return the command; the nodes look it up on the PATH of the node."""
    words = (*((spec.script,) if spec.script else ()), *spec.args)
    if spec.module or not words:
        given = f"-m '{spec.module}'" if spec.module else "none"
        raise SpecError(
            f"recipe '{spec.recipe}' runs a command, and {given} was given",
            hint=f"composesim up --recipe {spec.recipe} -- hostname",
        )
    return Program(target=words[0], arguments=words[1:], is_command=True, folder=str(folder), mounts=(own,))


def script_of(source: bytes, name: str = STDIN) -> Path:
    """Write a script that has no file into a temporary folder, which the caller deletes, and return the path."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    folder.chmod(0o755)  # nodes may run as another user
    script = folder / name
    script.write_bytes(source)
    return script


def new_name(spec: ClusterSpec) -> str:
    """Return the name that the user chose, or the script's name with four random hexadecimal digits."""
    if spec.name:
        return spec.name
    recipe = find_recipe(spec.recipe)
    words = (spec.script, *spec.args[:1]) if recipe.RUNS_COMMANDS else (spec.script,)
    first = next(filter(None, words), recipe.EXAMPLE or spec.recipe)
    name = name_after(spec.module or first, is_module=spec.module is not None)
    return f"{name}-{secrets.token_hex(2)}"


def name_after(target: str, *, is_module: bool) -> str:
    """Return the last part of a script's or a module's name in lower-case letters, digits and -, or `run`."""
    stem = target.rpartition(".")[2] if is_module else Path(target).stem
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem.lower()).strip("-")
    return plain[:40].strip("-") or "run"


def _check_no_launcher(name: str, path: Path, words: Sequence[str]) -> None:
    """Raise SpecError if a launcher is named in place of the script: composesim starts the ranks itself."""
    if path.exists() or not (name in _LAUNCHERS or _PYTHON.fullmatch(name)):
        return
    words = words[1:] if name == "accelerate" and words[:1] == ("launch",) else words
    is_known = name == "torchrun" or (bool(words) and not words[0].startswith("-")) or words[:1] == ("-m",)
    rest = shlex.join(words) if is_known and words else "train.py"
    raise SpecError(f"'{name}' starts ranks, and so does composesim: leave it out", hint=f"composesim up {rest}")


def _check_script(path: Path, name: str, folder: Path) -> None:
    if not path.exists():
        scripts = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        near = nearest_file(path.name, scripts)
        meant = name if path.name.startswith(f"{near} ") else Path(name).with_name(near) if near else ""
        raise SpecError(
            f"the script '{name}' does not exist" + (f"; did you mean '{near}'?" if near else ""),
            evidence=f"in '{path.parent}' there is: {', '.join(scripts[:5])}" if scripts and not near else "",
            hint=f"composesim up {meant}" if near else "composesim init writes one to start from",
        )
    if not path.is_file():
        piped = path.is_fifo() or path.is_char_device() or path.is_socket()  # such as /dev/stdin
        hint = "composesim up - reads it from standard input" if piped else "composesim up -m MODULE runs a package"
        raise SpecError(f"the script '{name}' is not a file", hint=hint)
    if path.suffix in (".yaml", ".yml"):
        raise SpecError(f"'{name}' is not a Python script but a spec file", hint=f"composesim up -f {name}")
    try:
        source = read_project_file(path, folder)
        if b"\0" in source:
            raise ValueError("it contains null bytes")
        compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _not_python(without_temporary_folder(name), error) from None


def _not_python(name: str, error: Exception) -> SpecError:
    """Return the error about a script that CPython cannot compile; for nested expressions, it raises different errors."""
    hint = "" if name == STDIN else f"python -m py_compile {name}"
    if not isinstance(error, SyntaxError):
        why = str(error) or "it is nested too deeply"
        return SpecError(f"the script '{name}' is not Python source: {why}", hint=hint)
    where = f"{name}, line {error.lineno}: {(error.text or '').strip()[:_LONGEST_LINE]}"
    return SpecError(f"the script '{name}' is not valid Python: {error.msg}", evidence=where, hint=hint)


SPEC_FILE = "composesim.yaml"
_MISSPELLED = "composesim.yml"
_MAX_OF_VARIABLE = 128 << 10  # bytes; Linux starts no process with a longer one
PROJECT_FILE = "pyproject.toml"
_READABLE = 0o5  # the bits of a mode that let a class of users list a folder and open what is in it
_FIRST_PERSON = 1000  # the lowest user id that belongs to a person and not to a service


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked request: the spec and the contents of the files next to it."""

    spec: ClusterSpec
    folder: Path = field(default_factory=Path.cwd)  # the project: every node mounts it, and it holds `.composesim`
    dotenv: str = ""  # the text of `.env`
    dotenv_variables: Mapping[str, str] = field(default_factory=dict)
    env_files: Mapping[str, str] = field(default_factory=dict)  # the variables of `--env-file`
    remarks: tuple[str, ...] = ()  # how the request was read, if that may surprise the user
    program: Program | None = None  # what the ranks run, if it is not the spec's script, module or example
    isolates: bool = False  # nodes reach only one another unless the spec says otherwise
    job_file: JobFile | None = None  # the job of a cluster that was read in place of a spec file
    scalable: frozenset[str] = frozenset()  # keys of the spec that come from it, and may be lowered to fit this machine
    command: tuple[str, ...] = ()  # the words after `composesim` that made it, for `rerun`
    allow_mount: tuple[str, ...] = ()  # sources of mounts that are refused otherwise
    has_typed_script: bool = False  # not one that the project's settings name
    hidden: tuple[str, ...] = ()  # folders of this machine, without links, that nodes do not see if they are containers
    label: str = ""  # what reports show as the program, if not the command line

    def with_spec(self, **changes: Any) -> Request:
        """Return the same request with other values for fields of the spec."""
        return replace(self, spec=self.spec.model_copy(update=changes))

    def plan(self, *, run: str, run_folder: Path, portable: bool = False) -> tuple[Plan, Host]:
        """Inspect this machine and return a plan for it as it is now."""
        spec, recipe = self.spec, find_recipe(self.spec.recipe)
        host = inspect_host(
            self.folder,
            runs=run_folder,
            python=spec.python,
            user=spec.user,
            packages={**recipe.PACKAGES, **needed_packages(spec.services)},
            with_docker=spec.engine in ("auto", "docker") and not portable,
            with_ports=not portable and bool(spec.services or spec.publish or recipe.DRIVEN),
        )
        spec, lowered = _fitted(spec, self.scalable, host) if self.scalable and not portable else (spec, ())
        program = program_of(self)
        if spec.user and not portable:
            _check_readable(self.folder, host)
        plan_of = partial(
            make_plan,
            host=host,
            run=run,
            run_folder=str(run_folder),
            program=portable_program(program) if portable else program,
            recipe=recipe,
            dotenv=self.dotenv_variables,
            env_files=self.env_files,
            portable=portable,
            isolates=self.isolates,
        )
        plan = plan_of_size(spec, plan_of)
        if plan.engine == "docker" and not portable:
            self._check_folders_of(program)
        plan = replace(plan, choices=(*plan.choices, *lowered))
        if os.geteuid() == 0 and plan.user_ids[0] and plan.engine != "docker":
            plan = replace(plan, user="0:0", user_name="root")  # plain processes of root are root's in any project
        return (replace(plan, program=self.label) if self.label else plan), host

    def _check_folders_of(self, program: Program) -> None:
        """Judge the folders outside the project that nodes would see because of the script, like any mount."""
        typed = str(Path(os.path.abspath(self.folder / program.target)).parent) if self.has_typed_script else ""
        for mount in program.mounts[1:]:
            danger = danger_of(Path(mount.source), self.folder, allowed=self.allow_mount)
            if danger and not (mount.source == typed and danger == CONTAINS_HOME) and Path(mount.source).is_dir():
                raise SpecError(
                    f"nodes would see '{mount.source}', where '{program.target}' is, and which {danger}",
                    hint=f"copy the script into the project, or allow it: --allow-mount {mount.source}",
                )


def _fitted(spec: ClusterSpec, keys: frozenset[str], host: Host) -> tuple[ClusterSpec, tuple[Choice, ...]]:
    has_docker = spec.engine != "local" and host.docker.available
    return fit(spec, keys, cpus=host.cpus, memory_bytes=host.memory_bytes, has_docker=has_docker)


def program_of(request: Request) -> Program:
    """Return what the ranks run; SpecError if there is no such script."""
    return request.program or find_program(request.spec, find_recipe(request.spec.recipe), request.folder)


def _check_readable(folder: Path, host: Host) -> None:
    """Raise SpecError if the user of the nodes cannot read the project: containers mount it, whoever may enter the folders above."""
    status = folder.stat()
    shift = 6 if status.st_uid == host.user_id else 3 if status.st_gid == host.group_id else 0
    if status.st_mode >> shift & _READABLE != _READABLE:
        raise SpecError(
            f"the user '{host.user_name}' cannot read the project '{folder}'",
            evidence=f"its mode is {stat.filemode(status.st_mode)}",
            hint=f"chmod o+rx {folder}, or leave --user out",
        )


def read_request(
    given: Mapping[str, Any],
    *,
    file: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
    allow_mount: Collection[str] = (),
) -> Request:
    """
    Merge values that the user gave, by field of ClusterSpec, with the spec file.

    `defaults` replace values of the file; `given` replaces both. `allow_mount` names sources of mounts that are refused otherwise; a
    file cannot, so that a project cannot allow itself a mount. Raises SpecError that names the argument, or the file, line and key.
    """
    folder = Path(os.path.abspath(file.parent if file else "."))
    check_project(folder, file or folder / SPEC_FILE, folder / HIDDEN)
    text, source, remark = _spec_text(file, folder)
    job_reader = _job_reader(text) if file else None
    if job_reader:
        folder = Path.cwd()  # a job file lies anywhere, and names its script from where it is submitted
        check_project(folder, folder / HIDDEN)
    dotenv_file = folder / ".env"
    dotenv = read_settings(dotenv_file, folder) if dotenv_file.is_file() else ""
    dotenv_variables = _parse_dotenv(dotenv, ".env")
    variables = {**dotenv_variables, **os.environ}
    job = job_reader(text, source, variables, given, folder) if job_reader else None
    values = job.values if job else parse_spec_text(text, source, variables=variables)
    spec = make_spec({**values, **(defaults or {})}, given)
    if spec.script:  # Python imports modules beside it, and beside what a link leads to
        script = folder / spec.script
        check_project(Path(os.path.abspath(script.parent)), script, script.resolve().parent)
    env_files: dict[str, str] = {}
    for name in spec.env_file:
        if not (folder / name).is_file():
            raise SpecError(
                f"the env file '{name}' does not exist in '{folder}'", hint="leave --env-file out, or create it"
            )
        env_files |= _parse_dotenv(read_settings(folder / name, folder), name)
    mounts = tuple(_absolute_mount(mount, folder, allowed=allow_mount) for mount in spec.mounts)
    spec = spec.model_copy(update={"mounts": mounts})
    return Request(
        spec=spec,
        folder=folder,
        dotenv=dotenv,
        dotenv_variables=dotenv_variables,
        env_files=env_files,
        remarks=tuple(filter(None, (remark, _about_environment(spec)))),
        job_file=job,
        allow_mount=tuple(allow_mount),
        has_typed_script=bool(given.get("script")),
        scalable=frozenset(job.values).difference(given, defaults or {}) if job else frozenset(),
    )


def _about_environment(spec: ClusterSpec) -> str:
    """Return that variables of ranks cannot be set, if the user has tried; else ""."""
    names = [name for name in _OF_RANKS if name in spec.env]
    return f"--env {', '.join(names)}: no effect, because each rank gets its own" if names else ""


def _job_reader(text: str) -> Callable[..., JobFile] | None:
    """Return what reads this text if it is the job file of a cluster; other requests do not wait for the import."""
    readers = (feature.load() for feature in built_in(READERS).values())
    return next((cast(Callable[..., JobFile], each.read_job) for each in readers if each.is_job_file(text)), None)


def _spec_text(file: Path | None, folder: Path) -> tuple[str, str, str]:
    """Return the text of the spec file, its name, and a remark if two files could be meant."""
    own, project = file or folder / SPEC_FILE, folder / PROJECT_FILE
    other = folder / _MISSPELLED
    if not file and other.exists() and not own.exists():
        raise SpecError(
            f"'{_MISSPELLED}' is not read: settings are in {SPEC_FILE}", hint=f"mv {_MISSPELLED} {SPEC_FILE}"
        )
    table = not file and project.is_file() and "[tool.composesim" in (text := read_settings(project, folder))
    if own.exists():
        remark = f"{SPEC_FILE} is read; [tool.composesim] in {PROJECT_FILE} is not" if table else ""
        return read_settings(own, folder), str(file or SPEC_FILE), remark
    if file:
        raise SpecError(f"the spec file '{file}' does not exist", hint="composesim init writes one to start from")
    return (text, PROJECT_FILE, "") if table else ("", SPEC_FILE, "")


def _absolute_mount(mount: str, folder: Path, *, allowed: Collection[str]) -> str:
    """Return the mount with an absolute source without links; raise SpecError if the source does not exist or has to be allowed."""
    named, *rest = mount.split(":")
    source = folder / Path(named).expanduser()
    if not source.exists():
        raise SpecError(f"the source '{source}' of mount '{mount}' does not exist", hint=f"mkdir -p {source}")
    if rest and hides_system(rest[0]):
        raise SpecError(
            f"mount '{mount}' would hide '{rest[0]}', which nodes need",
            hint=f"choose another target: --mount {named}:/data",
        )
    real = os.path.realpath(source)
    if danger := danger_of(source, folder, allowed=allowed):
        raise SpecError(
            f"'{source}' of mount '{mount}' {danger}",
            hint=f"mount only the folder that nodes need, or allow it: --allow-mount {source}",
        )
    return ":".join([real, *rest])  # a link may lead elsewhere later


def danger_of(source: Path, folder: Path, *, allowed: Collection[str]) -> str:
    """Return why nodes should not see a file or folder, unless the user allowed it; "" if they may."""
    real = os.path.realpath(source)
    homes = {user.pw_dir for user in pwd.getpwall() if user.pw_uid == 0 or user.pw_uid >= _FIRST_PERSON}
    with suppress(RuntimeError):  # this user has no home
        homes.add(str(Path.home()))
    homes |= {os.path.realpath(home) for home in homes}
    is_allowed = real in {os.path.realpath(folder / Path(path).expanduser()) for path in allowed}
    return "" if is_allowed else why_dangerous(real, homes=homes)


def _parse_dotenv(text: str, name: str) -> dict[str, str]:
    if not text.strip():
        return {}
    from io import StringIO

    from dotenv import dotenv_values
    from dotenv.parser import parse_stream
    from dotenv.variables import Variable, parse_variables

    for binding in parse_stream(StringIO(text)):
        if binding.error:
            raise SpecError(
                f"{name}, line {binding.original.line}: '{binding.original.string.strip()}' is not NAME=value",
                hint=f"edit {name}; a comment starts with #",
            )
    sizes: dict[str, int] = {}  # a reference can stand for many others, and so on
    for key, value in dotenv_values(stream=StringIO(text), interpolate=False).items():
        atoms = [*parse_variables(value or "")]
        sizes[key] = sum(
            sizes.get(each.name, 0) if isinstance(each, Variable) else len(each.resolve({})) for each in atoms
        )
        if sizes[key] > _MAX_OF_VARIABLE:
            raise SpecError(f"{name}: the value of '{key}' is longer than 128 KiB", hint=f"edit {name}")
    values = {key: value or "" for key, value in dotenv_values(stream=StringIO(text)).items()}
    try:
        return check_environment(values)
    except ValueError as error:
        raise SpecError(f"{name}: {error}") from None
