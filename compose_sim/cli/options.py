"""Turn the fields of `core/request/spec.py`, where every flag is declared, into options of the verbs that run a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import click

from compose_sim.app.request import SPEC_FILE, Request, read_request
from compose_sim.cli.cluster_command import DEFAULT_SCRIPT
from compose_sim.core.plan.recipes import BUILT_IN, load_recipe
from compose_sim.core.request.flags import SpecOption, options_of
from compose_sim.core.request.spec import CheckSpec, ClusterSpec
from compose_sim.errors import SpecError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_FIELDS = {option.key: option for option in options_of(ClusterSpec) if option.flags}


def _recipe_flags() -> dict[str, tuple[str, str, str]]:
    """Return the recipe options that have a flag: keyword of the verb -> name, metavar ("" for a switch) and description."""
    recipes = [load_recipe(name) for name in BUILT_IN]
    flags = {name: (metavar, recipe) for recipe in recipes for name, metavar in getattr(recipe, "FLAGS", {}).items()}
    return {name.replace("-", "_"): (name, metavar, recipe.OPTIONS[name]) for name, (metavar, recipe) in flags.items()}


_RECIPE_FLAGS = _recipe_flags()  # `--mpi` is `--option mpi=on`


def _spec_option(option: SpecOption) -> Decorator:
    if option.kind == "switch":
        return click.option(*option.flags, option.key, is_flag=True, default=None, help=option.help)
    return click.option(
        *option.flags,
        option.key,
        multiple=option.kind != "value",
        metavar=option.metavar,
        type=click.Path(dir_okay=False) if option.metavar == "FILE" else None,
        help=option.help,
    )


def _cluster_options(defaults: Mapping[str, str], *, without: str = "") -> Iterable[Decorator]:
    for key, option in _FIELDS.items():
        if key not in ("keep", without):
            yield _spec_option(replace(option, default=defaults.get(key, option.default)))
        if key == "options":
            for keyword, (name, metavar, text) in _RECIPE_FLAGS.items():
                yield click.option(
                    f"--{name}", keyword, metavar=metavar or None, is_flag=not metavar, default=None, help=text
                )
    file = click.Path(path_type=Path)
    yield click.option("-f", "--file", "file", metavar="FILE", type=file, help=f"Spec file.  [default: {SPEC_FILE}]")
    allow = "Allow to mount this path, although its content can give nodes control of the machine."
    yield click.option("--allow-mount", "allow_mount", multiple=True, metavar="PATH", help=allow)
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
    of_recipe = {name: given.pop(keyword) for keyword, (name, *_) in _RECIPE_FLAGS.items() if keyword in given}
    if of_recipe:
        values = {name: "on" if value is True else value for name, value in of_recipe.items()}
        given["options"] = {**given.get("options", {}), **values}
    if program:
        # After -m or a leading -- every word is an argument; else the first one is the script.
        only_arguments = "module" in given or click.get_current_context().meta[DEFAULT_SCRIPT]
        given |= {"args": program} if only_arguments else {"script": program[0], "args": program[1:]}
    return read_request(given, file=file, defaults=defaults, allow_mount=allow_mount)


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
