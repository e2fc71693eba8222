"""Find the script, module or command that every rank runs, and name the run after it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from compose_sim import assets
from compose_sim.core.plan.model import Mount, Program
from compose_sim.core.plan.recipes import Recipe
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.recipe_plugins import find_recipe
from compose_sim.errors import SpecError


def find_program(spec: ClusterSpec, recipe: Recipe, folder: Path) -> Program:
    """Return the program of a spec, or the recipe's example; raise SpecError if there is no such program."""
    own = Mount(source=str(folder), target=str(folder))
    if recipe.RUNS_COMMANDS:
        return _find_command(spec, folder, own)
    if spec.module:
        return Program(target=spec.module, is_module=True, arguments=spec.args, folder=str(folder), mounts=(own,))
    if not (spec.script or recipe.EXAMPLE):
        raise SpecError(f"recipe '{spec.recipe}' has no example of its own", hint="name a script behind the options")
    script = _script_of(spec, recipe, folder)
    path = Path(os.path.abspath(folder / script))
    _check_script(path, str(script))
    real = path.resolve()  # nodes must also see the target of a link that leads out of the project
    outside = {
        # An example of ours reads data in a folder above.
        assets.root() if at.is_relative_to(assets.examples()) else at.parent
        for at in (path, real)
        if not at.is_relative_to(folder) and not at.is_relative_to(folder.resolve())
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


def new_name(spec: ClusterSpec) -> str:
    """Return the name that the user chose, or the script's name with four random hexadecimal digits."""
    if spec.name:
        return spec.name
    recipe = find_recipe(spec.recipe)
    words = (spec.script, *spec.args[:1]) if recipe.RUNS_COMMANDS else (spec.script,)
    first = next(filter(None, words), recipe.EXAMPLE or spec.recipe)
    stem = (spec.module or Path(first).stem).rpartition(".")[2].lower()
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
