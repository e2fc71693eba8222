"""Say what to type if a script lacks a package, or a file that only this machine has."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from posixpath import normpath

from compose_sim.core.plan.model import CONTAINER_HOME, Plan

_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)'")
_NO_FILE = re.compile(r"(?:FileNotFoundError|OSError|RuntimeError): .{0,200}?['\"](?P<path>[^'\"]+)['\"]")
# Distributions that are not named after their module
_DISTRIBUTIONS = {"cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}


def package_hint(message: str, plan: Plan) -> str:
    """Return how to install the package that an error names, in the Python or the image of the nodes; "" for other errors."""
    found = _NO_MODULE.fullmatch(message)
    if not found:
        return ""
    if plan.engine == "docker" and plan.image != "host":
        return f"The nodes run the image {plan.image}. Try: composesim image build --requirements FILE"
    name = _DISTRIBUTIONS.get(found[1], found[1])
    return f"The nodes run {plan.python}. Try: {plan.python} -m pip install {name}"


def missing_file(message: str) -> str:
    """Return the path, as the script wrote it, of the file that an error does not find; "" for other errors."""
    found = _NO_FILE.match(message.partition("\n")[0])
    return found["path"] if found and ("No such file" in message or "does not exist" in message) else ""


def below(folder: str, path: str) -> str:
    """Return the absolute path, without `..`, of a path that may be relative to the folder."""
    return normpath(PurePosixPath(folder, path))


def on_this_machine(path: str, home: str) -> str:
    """Return where this machine has what nodes look for at `path`: their home folder is another one."""
    below = PurePosixPath(path)
    return str(PurePosixPath(home, below.relative_to(CONTAINER_HOME))) if below.is_relative_to(CONTAINER_HOME) else path


def mount_hint(path: str, source: str, plan: Plan) -> str:
    """Return how to let nodes see a file or folder of this machine at `path`."""
    return (
        f"'{source}' is on this machine, but nodes see only {plan.working_directory} and what is mounted. "
        f"Try: composesim up --mount {source}:{path}:ro …"
    )


def folder_hint(path: str, script: str, plan: Plan) -> str:
    """Return how to run a script that looks for a file beside itself, if ranks run in another folder."""
    folder, _, name = script.rpartition("/")
    return (
        f"'{path}' is relative to {plan.working_directory}, where ranks run, and '{folder}' has it. "
        f"Try: cd {shlex.quote(folder)} && composesim up {shlex.quote(name)} …"
    )
