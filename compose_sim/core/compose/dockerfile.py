"""What does the image of a recipe's nodes consist of, and how does that read as a Dockerfile?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import jinja2

from compose_sim.core.compose.templates import template_environment
from compose_sim.errors import SpecError

DEFAULT_BASE = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"  # the official runtime image
PYTHON_BASE = "python:3.11-slim"  # where torch is not wanted
DEFAULT_TORCH = "torch==2.13.0"
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Packages that an image gets where its base lacks them; which, says `requirements/NAME.txt`."""

    name: str
    module: str = ""  # a base that can import it has the framework already; empty: pip sees what is missing
    requirements: tuple[str, ...] = ()  # what the file holds where composesim has none of that name
    unwanted: tuple[str, ...] = ()  # what comes along and is taken out again


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the image of a recipe holds."""

    base: str = DEFAULT_BASE  # what it is built on where nothing else is said
    torch: bool = True
    frameworks: tuple[Framework, ...] = ()
    system_packages: tuple[str, ...] = ()  # of Debian and Ubuntu
    compiled: str = ""  # the framework that is compiled in a stage of its own, whose compilers do not stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What goes into one image: names in the text of the Dockerfile, and whether the files beside it are there."""

    base: str = DEFAULT_BASE
    torch: str = DEFAULT_TORCH  # a requirement for pip, used where the base has no torch; empty for an image without
    frameworks: tuple[Framework, ...] = ()
    system_packages: tuple[str, ...] = ()
    compiled_on: str = (
        ""  # the image with compilers for the framework that comes from no wheel; empty: none is compiled
    )
    requirements: bool = False  # requirements.txt
    wheels: bool = False  # a build context named `wheels`
    ca_certificate: bool = False  # build-ca.crt, trusted by pip while building
    keep_ca_certificate: bool = False  # and by the image afterwards

    @property
    def modules(self) -> tuple[str, ...]:
        """What the finished image must be able to import."""
        named = tuple(framework.module for framework in self.frameworks if framework.module)
        return ("torch", *named) if self.torch else named


_RAY = Framework(name="ray", module="ray.rllib")
_PADDLE = Framework(name="paddle", module="paddle")
_FOR_PADDLE = ("libgomp1",)  # its wheel has no OpenMP of its own, as torch's has
RECIPES: Mapping[str, Contents] = {
    "ddp": Contents(),
    "exec": Contents(),
    "horovod": Contents(
        frameworks=(Framework(name="horovod", module="horovod.torch"),),
        system_packages=("openmpi-bin", "openssh-client", "openssh-server"),
        compiled="horovod",
    ),
    "ray": Contents(frameworks=(_RAY,)),
    "paddle": Contents(base=PYTHON_BASE, torch=False, frameworks=(_PADDLE,), system_packages=_FOR_PADDLE),
    "paddle-ray": Contents(base=PYTHON_BASE, torch=False, frameworks=(_PADDLE, _RAY), system_packages=_FOR_PADDLE),
}
SERVICES: Mapping[str, Framework] = {  # what `--with` adds: services that run on the nodes' image
    # jsonschema imports the grammar of these two where it finds them, and Ray jsonschema: 1.4 s of CPU for each of its processes.
    "jupyter": Framework(name="jupyter", module="jupyterlab", unwanted=("rfc3987-syntax", "lark")),
    "tensorboard": Framework(name="tensorboard", module="tensorboard"),
}


def contents_of_packages(recipe: str, packages: Mapping[str, str]) -> Contents:
    """What the image of a recipe outside composesim holds: the packages that it says it needs, with the least version of each."""
    if not _NAME.fullmatch(recipe):
        raise SpecError(f"recipe '{recipe}' cannot name an image", hint="letters, digits, - and _")
    wanted = tuple(f"{name}>={least}" if least else name for name, least in packages.items() if name != "torch")
    frameworks = (Framework(name=recipe, requirements=wanted),) if wanted else ()
    torch = "torch" in packages
    return Contents(base=DEFAULT_BASE if torch else PYTHON_BASE, torch=torch, frameworks=frameworks)


def compilers_of(base: str) -> str:
    """The image to compile on for a base: PyTorch's and CUDA's `-runtime` images have a twin with compilers."""
    return re.sub(r"(:[^/]*?)-runtime(?=[^/]*$)", r"\1-devel", base)


def render_dockerfile(image: Image, *, loader: jinja2.BaseLoader) -> str:
    """The Dockerfile of an image; SpecError for a base that is no image reference."""
    for option, reference in (("--base", image.base), ("--compile-on", image.compiled_on or image.base)):
        if not _REFERENCE.fullmatch(reference):
            raise SpecError(f"'{reference}' is not the name of an image", hint=f"{option} {DEFAULT_BASE}")
    environment = template_environment(loader)
    environment.filters["shell"] = _shell
    return environment.get_template("templates/image/Dockerfile.j2").render(image=image)


def _shell(text: str) -> str:
    """One word of a shell's command line, on one line of the file."""
    if any(not character.isprintable() for character in text):
        raise SpecError(f"'{text}' is not a requirement", hint=f"--torch {DEFAULT_TORCH}")
    return shlex.quote(text)
