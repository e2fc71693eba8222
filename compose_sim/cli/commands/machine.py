"""Check this machine, measure its links and GPUs, and build the image that nodes run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from compose_sim.cli.console import MARKS, print_json, say, show
from compose_sim.cli.run_lookup import FILE, json_option
from compose_sim.core.compose.dockerfile import DEFAULT_TORCH, Image, compilers_of
from compose_sim.core.plan.defaults import default_image
from compose_sim.core.plan.recipes import DEFAULT_BASE_TAG, Contents, Framework, contents_of_packages, load_recipe
from compose_sim.core.plan.services import load_service
from compose_sim.core.request.names import RECIPE_NAMES, SERVICE_NAMES, SERVICES
from compose_sim.core.text import format_bytes
from compose_sim.errors import EnvironmentMissingError
from compose_sim.plugins.registry import find


@click.command("doctor")
@click.option(
    "--gpu", is_flag=True, help="Run on the GPUs to prove that nodes get them, share them, and communicate by NCCL."
)
@click.option(
    "--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of that run.  [default: one per GPU, 2 to 8]"
)
@json_option
def doctor_command(gpu: bool, nodes: int | None, as_json: bool) -> None:
    """Check this machine. The exit code is 4 if no run is possible; a ! marks what only some runs need."""
    if nodes and not gpu:
        raise click.UsageError("--nodes is for the run of --gpu: composesim doctor --gpu --nodes 4")
    from compose_sim.core.doctor.machine_checks import diagnose, is_fit

    if gpu:
        from compose_sim.cli.gpu_bench import prove_gpus

        checks = prove_gpus(nodes)
    else:
        from compose_sim.engine.lifetime.doctor_facts import inspect_machine

        checks = diagnose(inspect_machine(Path.cwd()))
    fit = is_fit(checks)
    if as_json:
        print_json({"schema_version": 1, "fit": fit, "checks": [check.to_dict() for check in checks]})
    else:
        for check in checks:
            mark, color = MARKS[check.status]
            show(f"{click.style(mark, fg=color, bold=True)} {check.id:<10} {check.detail}", hang=13)
            if check.hint:
                show(f"  {'':<10} Try: {check.hint}")
    sys.exit(0 if fit else EnvironmentMissingError.exit_code)


@click.command("bench")
@click.option(
    "--link",
    is_flag=False,
    flag_value="1gbit",
    metavar="[SHAPE]",
    help="The link between two nodes: bandwidth, delay and loss.  [default without SHAPE: 1gbit]",
)
@click.option("--gpu", is_flag=True, help="Training steps and all-reduces of nodes that share this machine's GPUs.")
@click.option("--nodes", default="1,2,4,8,16", show_default=True, metavar="N,N…", help="With --gpu: numbers of nodes.")
@click.option("--plot", type=FILE, help="With --gpu: draw it as SVG.")
@json_option
def bench_command(link: str | None, gpu: bool, nodes: str, plot: Path | None, as_json: bool) -> None:
    """Run a benchmark. The exit code is 1 if the link is not within 10 % of the requested shape, or no GPU run passed."""
    if gpu and link is None:
        from compose_sim.cli.gpu_bench import bench_gpu

        bench_gpu(nodes, plot, as_json=as_json)
    elif link is not None and not gpu:
        from compose_sim.cli.link_bench import bench_link

        bench_link(link, as_json=as_json)
    else:
        raise click.UsageError("say what to measure: composesim bench --link 100mbit, or composesim bench --gpu")


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_IMAGES = (getattr(load_recipe(name), "IMAGE", Contents()) for name in RECIPE_NAMES)
_COMPILED = " or ".join(image.compiled.capitalize() for image in _IMAGES if image.compiled) or "frameworks"
_IN_IMAGES = [name for name in SERVICE_NAMES if load_service(name).PACKAGES] or ["none"]


@click.group("image")
def image_command() -> None:
    """Build the image that nodes run."""


@image_command.command("build")
@click.option("--recipe", default="ddp", show_default=True, metavar="NAME", help="Recipe whose frameworks to install.")
@click.option(
    "--with", "services", default="", metavar="NAME,…", help=f"Services to install as well: {', '.join(_IN_IMAGES)}."
)
@click.option("--base", metavar="TAG", help=f"Base image, with or without torch.  [default: {DEFAULT_BASE_TAG}]")
@click.option(
    "--compile-on",
    metavar="TAG",
    help=f"Image to compile {_COMPILED} in.  [default: the base, or its -devel variant]",
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
    from compose_sim.engine.docker.build import BuildFiles, build_image, has_wheel
    from compose_sim.engine.host.recipe_plugins import find_recipe

    if keep_ca_certificate and not ca_certificate:
        raise click.UsageError("--keep-ca-certificate needs --ca-certificate FILE")
    module = find_recipe(recipe)
    contents = getattr(module, "IMAGE", None) or contents_of_packages(recipe, module.PACKAGES)
    base = base or contents.base
    compiles = contents.compiled and not has_wheel(wheels, contents.compiled)
    if compile_on and not contents.compiled:
        raise click.UsageError(f"--compile-on: nothing is compiled for recipe '{recipe}'")
    image = Image(
        base=base,
        torch=torch if contents.torch else "",
        frameworks=(*contents.frameworks, *_frameworks(services)),
        system_packages=contents.system_packages,
        compiled=contents.compiled,
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


def _frameworks(services: str) -> Iterator[Framework]:
    for name in filter(None, services.split(",")):
        service = load_service(name) if find(SERVICES, name) else None
        if not service or not service.PACKAGES:
            known = " and ".join(_IN_IMAGES)
            raise click.UsageError(f"--with {name}: an image can hold {known}; other services need nothing in it")
        yield from getattr(service, "FRAMEWORKS", contents_of_packages(name, service.PACKAGES).frameworks)
