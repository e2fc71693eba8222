"""Find the script, module or command that every rank runs, and name the run after it."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from compose_sim import assets
from compose_sim.core.piped_script import FOLDER_PREFIX, STDIN, without_temporary_folder
from compose_sim.core.plan.model import Mount, Program
from compose_sim.core.plan.mounts import is_private
from compose_sim.core.plan.recipes import Recipe
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.spelling import nearest_file
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.engine.project_files import read_project_file
from compose_sim.errors import SpecError

_LONGEST_LINE = 200  # of a script, as evidence


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
    _check_script(path, str(script), folder)
    real = path.resolve()  # nodes must also see the target of a link that leads out of the project
    outside = {
        # An example of ours reads data in a folder above. Of a folder that nodes have privately they see only the script.
        assets.root() if at.is_relative_to(assets.examples()) else at if is_private(str(at.parent)) else at.parent
        for at in (path, real)
        if is_private(str(at.parent)) or not (at.is_relative_to(folder) or at.is_relative_to(folder.resolve()))
    }
    besides = tuple(Mount(source=str(each), target=str(each), read_only=True) for each in sorted(outside))
    return Program(target=str(script), arguments=spec.args, folder=str(folder), mounts=(own, *besides))


def _script_of(spec: ClusterSpec, recipe: Recipe, folder: Path) -> Path:
    """Return the named script, or the recipe's example: from the folder, or else the shipped one of that name."""
    named = Path(spec.script or Path(recipe.EXAMPLE).name)
    shipped = assets.examples() / named if spec.script else assets.root() / recipe.EXAMPLE
    is_elsewhere = len(named.parts) > 1 or (folder / named).exists() or not shipped.is_file()
    return named if is_elsewhere else shipped


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


def _check_script(path: Path, name: str, folder: Path) -> None:
    if not path.exists():
        scripts = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
        near = nearest_file(path.name, scripts)
        raise SpecError(
            f"the script '{name}' does not exist" + (f"; did you mean '{near}'?" if near else ""),
            evidence=f"in '{path.parent}' there is: {', '.join(scripts[:5])}" if scripts and not near else "",
            hint=f"composesim up {Path(name).with_name(near)}" if near else "composesim init writes one to start from",
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
