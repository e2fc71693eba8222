"""Define `composesim image`: build the image that nodes run, if this machine lacks what a recipe needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.run_lookup import json_option
from compose_sim.core.compose.dockerfile import (
    DEFAULT_BASE_TAG,
    DEFAULT_TORCH,
    RECIPES,
    SERVICES,
    Image,
    compilers_of,
    contents_of_packages,
)
from compose_sim.core.plan.defaults import default_image
from compose_sim.core.units import format_bytes
from compose_sim.engine.docker.build import BuildFiles, build_image, has_wheel
from compose_sim.engine.host.recipe_plugins import find_recipe

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("image")
def command() -> None:
    """Build the image that nodes run."""


@command.command("build")
@click.option("--recipe", default="ddp", show_default=True, metavar="NAME", help="Recipe whose frameworks to install.")
@click.option(
    "--with", "services", default="", metavar="NAME,…", help=f"Services to install as well: {', '.join(SERVICES)}."
)
@click.option("--base", metavar="TAG", help=f"Base image, with or without torch.  [default: {DEFAULT_BASE_TAG}]")
@click.option(
    "--compile-on",
    metavar="TAG",
    help="Image to compile Horovod in.  [default: the base, or its -devel variant]",
)
@click.option(
    "--tag", metavar="TAG", help="Name of the image.  [default: composesim:latest or composesim-RECIPE:latest]"
)
@click.option("--torch", default=DEFAULT_TORCH, show_default=True, help="What pip installs if the base has no torch.")
@click.option("--requirements", type=_FILE, metavar="FILE", help="Requirements file of the script.")
@click.option(
    "--wheels", type=_FOLDER, metavar="DIR", help="Folder with wheels, which pip prefers to the package index."
)
@click.option("--ca-certificate", type=_FILE, metavar="FILE", help="CA certificates that pip trusts during the build.")
@click.option("--keep-ca-certificate", is_flag=True, help="Keep these certificates in the image.")
@click.option("--network", metavar="NET", help="Network of the build, such as host.")
@json_option
def build(
    recipe: str,
    services: str,
    base: str | None,
    compile_on: str | None,
    tag: str | None,
    torch: str,
    requirements: Path | None,
    wheels: Path | None,
    ca_certificate: Path | None,
    keep_ca_certificate: bool,
    network: str | None,
    as_json: bool,
) -> None:
    """Build an image with the frameworks of a recipe and the requirements of the script. Use it with `up --image TAG`."""
    if keep_ca_certificate and not ca_certificate:
        raise click.UsageError("--keep-ca-certificate needs --ca-certificate FILE")
    contents = RECIPES.get(recipe) or contents_of_packages(recipe, find_recipe(recipe).PACKAGES)
    base = base or contents.base
    compiles = contents.compiled and not has_wheel(wheels, contents.compiled)
    if compile_on and not contents.compiled:
        raise click.UsageError(f"--compile-on: nothing is compiled for recipe '{recipe}'")
    image = Image(
        base=base,
        torch=torch if contents.torch else "",
        frameworks=(*contents.frameworks, *(SERVICES[name] for name in _services(services))),
        system_packages=contents.system_packages,
        compiled_on=(compile_on or compilers_of(base)) if compiles else "",
        requirements=requirements is not None,
        wheels=wheels is not None,
        ca_certificate=ca_certificate is not None,
        keep_ca_certificate=keep_ca_certificate,
    )
    files = BuildFiles(requirements=requirements, ca_certificate=ca_certificate, wheels=wheels)
    built = build_image(image, files, tag=tag or default_image(recipe), network=network)
    if as_json:
        print_json({"schema_version": 1, **asdict(built)})
    else:
        say(f"built {built.tag}: {format_bytes(built.size_bytes)}")
        option = "" if recipe == "ddp" else f" --recipe {recipe}"
        say(f"Run it: composesim up{option} --image {built.tag} train.py")


def _services(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in SERVICES:
            raise click.UsageError(
                f"--with {name}: an image can hold {' and '.join(SERVICES)}; other services need nothing in it"
            )
    return names
