"""What does `composesim image` do? `image build` makes the image that nodes run where this machine has no Python with torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from compose_sim.cli.console import print_json, say
from compose_sim.cli.select import json_option
from compose_sim.core.choices import DEFAULT_IMAGE
from compose_sim.core.imagefile import DEFAULT_BASE, DEFAULT_TORCH, ImageRecipe
from compose_sim.core.quantities import format_bytes
from compose_sim.engine.image import BuildFiles, build_image

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group("image")
def command() -> None:
    """Build the image that nodes run."""


@command.command("build")
@click.option("--base", default=DEFAULT_BASE, show_default=True, metavar="TAG", help="The image to build on.")
@click.option("--tag", default=DEFAULT_IMAGE, show_default=True, metavar="TAG", help="What to call the image.")
@click.option(
    "--torch", default=DEFAULT_TORCH, show_default=True, help="What pip installs where the base has no torch."
)
@click.option("--requirements", type=_FILE, metavar="FILE", help="Packages that the script needs.")
@click.option("--wheels", type=_FOLDER, metavar="DIR", help="Folder to take packages from before any index.")
@click.option("--ca-certificate", type=_FILE, metavar="FILE", help="Certificates that pip trusts while building.")
@click.option("--keep-ca-certificate", is_flag=True, help="Let the image trust them too.")
@click.option("--network", metavar="NET", help="Network of the build, such as host.")
@json_option
def build(
    base: str,
    tag: str,
    torch: str,
    requirements: Path | None,
    wheels: Path | None,
    ca_certificate: Path | None,
    keep_ca_certificate: bool,
    network: str | None,
    as_json: bool,
) -> None:
    """Build an image with torch and what the script needs; `up --image TAG` runs it."""
    if keep_ca_certificate and not ca_certificate:
        raise click.UsageError("--keep-ca-certificate needs --ca-certificate FILE")
    recipe = ImageRecipe(
        base=base,
        torch=torch,
        requirements=requirements is not None,
        wheels=wheels is not None,
        ca_certificate=ca_certificate is not None,
        keep_ca_certificate=keep_ca_certificate,
    )
    files = BuildFiles(requirements=requirements, ca_certificate=ca_certificate, wheels=wheels)
    image = build_image(recipe, files, tag=tag, network=network)
    if as_json:
        print_json({"schema_version": 1, **asdict(image)})
    else:
        say(f"built {image.tag}: {format_bytes(image.size_bytes)}")
        say(f"Run it: composesim up --image {image.tag} train.py")
