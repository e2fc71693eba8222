"""Turn the fields of `core/request/spec.py`, where every flag is declared, into options of the verbs that run a cluster."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import click

from compose_sim.app.request import SPEC_FILE, Request, read_request, script_of
from compose_sim.cli.cluster_command import DEFAULT_SCRIPT, ClusterOption
from compose_sim.cli.spelling import MEANT, normalized
from compose_sim.core.plan.recipes import load_recipe
from compose_sim.core.request.flags import SpecOption, options_of
from compose_sim.core.request.names import RECIPE_NAMES
from compose_sim.core.request.spec import CheckSpec, ClusterSpec
from compose_sim.core.text import format_bytes
from compose_sim.engine.project_files import MAX_BYTES, read_project_file
from compose_sim.errors import SpecError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_FIELDS = {option.key: option for option in options_of(ClusterSpec) if option.flags}


@dataclass(frozen=True, slots=True)
class _RecipeFlag:
    """An option of a recipe that has a flag."""

    recipe: str
    name: str
    metavar: str  # "" for a switch
    help: str


def _recipe_flags() -> dict[str, _RecipeFlag]:
    """Return the recipe options that have a flag, by keyword of the verb."""
    recipes = {name: load_recipe(name) for name in RECIPE_NAMES}
    return {
        name.replace("-", "_"): _RecipeFlag(recipe, name, metavar, module.OPTIONS[name])
        for recipe, module in recipes.items()
        for name, metavar in getattr(module, "FLAGS", {}).items()
    }


_RECIPE_FLAGS = _recipe_flags()  # `--mpi` is `--option mpi=on`


def _spec_option(option: SpecOption) -> Decorator:
    if option.kind == "switch":
        return _option(*option.flags, option.key, group=option.group, is_flag=True, default=None, help=option.help)
    return _option(
        *option.flags,
        option.key,
        group=option.group,
        bare=option.bare,
        multiple=option.kind != "value",
        metavar=option.metavar,
        type=click.Path(dir_okay=False) if option.metavar == "FILE" else None,
        is_eager=option.key == "recipe",  # for `--recipe NAME --help`
        help=option.help,
    )


def _option(*names: str, group: str, recipe: str = "", bare: str = "", **settings: Any) -> Decorator:
    """Return a decorator that adds an option of a group, and of a recipe if one is named."""
    kind = type("Option", (ClusterOption,), {"group": group, "recipe": recipe, "bare": bare})
    return click.option(*names, cls=kind, **settings)


def _cluster_options(defaults: Mapping[str, str], *, without: str = "") -> Iterable[Decorator]:
    for key, option in _FIELDS.items():
        if key not in ("keep", without):
            yield _spec_option(replace(option, default=defaults.get(key, option.default)))
        if key == "options":
            for keyword, flag in _RECIPE_FLAGS.items():
                is_switch = not flag.metavar
                settings: dict[str, Any] = {
                    "metavar": flag.metavar or None,
                    "is_flag": is_switch,
                    "default": None,
                    "help": flag.help,
                }
                yield _option(f"--{flag.name}", keyword, group="recipe", recipe=flag.recipe, **settings)
    file = click.Path(path_type=Path)
    yield click.option(
        "-f",
        "--file",
        "file",
        metavar="FILE",
        type=file,
        help=f"Spec file, or the job file of a cluster.  [default: {SPEC_FILE}]",
    )
    allow = "Allow to mount this path, although its content can give nodes control of the machine."
    yield _option("--allow-mount", "allow_mount", group="image", multiple=True, metavar="PATH", help=allow)
    yield click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")


def _decorated(function: Callable[..., Any], options: Iterable[Decorator]) -> Callable[..., Any]:
    return reduce(lambda decorated, option: option(decorated), reversed([*options]), function)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe a cluster; the verb gets them as keywords."""
    return _decorated(function, _cluster_options({}))


def portable_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options without `--force`: a folder that is written for another machine need not fit on this one."""
    return _decorated(function, _cluster_options({}, without="force"))


def check_options(defaults: Mapping[str, str]) -> Decorator:
    """Add the options of `check`: those of a cluster, with `defaults` for some of them, and those of CheckSpec."""
    own = map(_spec_option, options_of(CheckSpec))
    return lambda function: _decorated(function, [*_cluster_options(defaults), *own])


keep_option = _spec_option(_FIELDS["keep"])  # of the verbs that run nodes for the user


def request_from_flags(
    *, file: Path | None, program: tuple[str, ...], defaults: Mapping[str, Any] | None = None, **flags: Any
) -> Request:
    """
    Return the request of a command line and of the spec file that it names.

    `defaults` replace values of the file; flags replace both. Raises SpecError (exit 2) that names the flag, or the line and key.
    """
    allow_mount = flags.pop("allow_mount")
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    check = {name: given.pop(name) for name in CheckSpec.model_fields if name in given}
    given |= {"check": check} if check else {}
    for key, option in _FIELDS.items():
        if option.kind == "mapping" and key in given:
            given[key] = dict(_named_value(text, option) for text in given[key])
    of_recipe = {flag.name: given.pop(keyword) for keyword, flag in _RECIPE_FLAGS.items() if keyword in given}
    if of_recipe:
        values = {name: "on" if value is True else value for name, value in of_recipe.items()}
        given["options"] = {**given.get("options", {}), **values}
    command = tuple(sys.argv[1:])
    if program:
        # After -m or a leading -- every word is an argument; else the first one is the script.
        only_arguments = "module" in given or click.get_current_context().meta[DEFAULT_SCRIPT]
        if program[0] == "-" and not only_arguments:
            program, command = (_script_from_stdin(), *program[1:]), ()
        given |= {"args": program} if only_arguments else {"script": program[0], "args": program[1:]}
    request = read_request(given, file=file, defaults=defaults, allow_mount=allow_mount)
    _refuse_without_switch(check, request.spec.check)
    misplaced = _own_options_in(program[1:], request) if "script" in given else ""
    remarks = (*request.remarks, misplaced) if misplaced else request.remarks
    return replace(request, remarks=remarks, command=command)


def _refuse_without_switch(given: Mapping[str, Any], check: CheckSpec) -> None:
    """Refuse flags that only mean something beside the switch of their group, as --at-step does beside --resume."""
    for option in options_of(CheckSpec):
        if option.field in given and getattr(check, option.group, None) is False:
            wanted = shlex.join(("composesim", *sys.argv[1:2], f"--{option.group}", *sys.argv[2:]))
            raise SpecError(f"{option.flags[0]} needs --{option.group}", hint=wanted)


def _script_from_stdin() -> str:
    """Return the path of a script with what stdin holds; it is deleted when the command ends."""
    source = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES:
        raise SpecError(
            f"the script on standard input is larger than {format_bytes(MAX_BYTES)}", hint="composesim up --help"
        )
    script = script_of(source)
    click.get_current_context().call_on_close(lambda: shutil.rmtree(script.parent, ignore_errors=True))
    return str(script)


def _own_options_in(arguments: Sequence[str], request: Request) -> str:
    """Return a remark if arguments of the script are options of composesim, and the script does not mention them."""
    context = click.get_current_context()
    known = {name for param in context.command.params for name in param.opts if name.startswith("--")}
    script = str(request.spec.script)
    words = [
        word for word in arguments if word.startswith("--") and normalized(word.partition("=")[0]) in {*known, *MEANT}
    ]
    if not words:
        return ""
    try:
        source = read_project_file(request.folder / script, request.folder).decode("utf-8", "replace")
    except (OSError, SpecError):
        return ""  # the plan says so
    strange = [word for word in words if not _is_option_in(source, word[2:].partition("=")[0])]
    if not strange:
        return ""
    own = f"{context.command_path} {MEANT.get(strange[0], strange[0])} … {script}"
    return (
        f"{', '.join(strange)}: passed to {script}, like all words after it; options of composesim go before it: {own}"
    )


def _is_option_in(source: str, name: str) -> bool:
    """Return whether a script seems to take an option: it has the name as an option, a string, an attribute, a field or a parameter."""
    own = re.sub("[-_]", "[-_]", name)
    return bool(re.search(rf"""(--|["'.]){own}\b|\b{own}\s*[:=,)]""", source))


def _named_value(text: str, option: SpecOption) -> tuple[str, str]:
    """Split `NAME=VALUE`; for --env, NAME alone stands for the variable of this process."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    flag, takes_own = option.flags[0], option.key == "env"
    if takes_own and name in os.environ:
        return name, os.environ[name]
    problem = f"{flag} '{name}' has no value" + (", and this process has no such variable" if takes_own else "")
    raise SpecError(problem, hint=f"{flag} {name}=VALUE")
