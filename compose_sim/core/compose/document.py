"""Render a plan as a Compose document, and validate it against the schema of the Compose Specification.

Templates come from the caller's Jinja loader, so this module opens no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import jinja2
import yaml

from compose_sim.core.compose.names import project_name
from compose_sim.core.compose.templates import template_environment
from compose_sim.core.plan.environment import SCRATCH
from compose_sim.core.plan.model import (
    CONTAINER_FOLDER,
    CONTAINER_HOME,
    HIDDEN,
    KINDS,
    NOBODY,
    NODES,
    Mount,
    Plan,
    PlannedPort,
    PlannedService,
)
from compose_sim.core.plan.mounts import covers_of, target_of
from compose_sim.errors import ComposesimError

# Folders of the run in every container, and whether they are read-only.
_RUN_FOLDERS = {"node": True, "control": True, "shared": False}
IDENTITY_FILES = "identity"  # a folder in the run's folder
_IDENTITY = [
    Mount(source=f"./{IDENTITY_FILES}/{name}", target=f"/etc/{name}", read_only=True) for name in ("passwd", "group")
]
_NOBODY = f"nobody:x:{NOBODY}:{NOBODY}:nobody:/nonexistent:/usr/sbin/nologin"
_PLAIN = re.compile(r"[\w ,.:/=+@-]*", re.ASCII)
# Characters that a double-quoted YAML scalar must escape, or that YAML reads as line breaks.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def render_document(
    plan: Plan, *, loader: jinja2.BaseLoader, folder: str, real_path: Callable[[str], str] = str
) -> str:
    """
    Return the compose file of a plan. `folder` is the folder of the file, which containers carry as a label.

    `real_path` resolves links: what is mounted is compared with the folder of all runs without them.
    """
    environment = template_environment(loader)
    environment.filters |= {
        "quote": quote,
        "quote_list": quote_list,
        "bind": lambda mount: bind(mount, plan.source_of(mount)),
        "comment": comment,
        "project": project_name,
        "published": published,
        "ports_of": ports_of,
        "covers": partial(_covers, folder=folder, real_path=real_path),
    }
    identity = _IDENTITY if plan.brings_users else []
    folders = {**_RUN_FOLDERS, **({"secrets": True} if plan.is_driven else {}), **({"mps": False} if plan.mps else {})}
    mounts = [_run_folder(name, read_only=read_only) for name, read_only in folders.items()]
    mounts += [*identity, *plan.mounts, *_covers(plan.mounts, folder=folder, real_path=real_path)]
    in_memory = ["/tmp:exec,mode=1777", f"{CONTAINER_HOME}:exec,mode=1777"]
    if plan.scratch_bytes:
        in_memory.append(f"{SCRATCH}:mode=1777,size={plan.scratch_bytes}")
    template = environment.get_template("docker-compose.yml.j2")
    return template.render(
        plan=plan,
        mounts=mounts,
        own_folders=partial(_own_folders, is_driven=plan.is_driven),
        identity=identity,
        in_memory=in_memory,
        folder=folder,
    )


def render_service_files(plan: Plan, *, loader: jinja2.BaseLoader) -> dict[str, str]:
    """Return the files of services, by name in the run's `services` folder. Only names in .j2 are templates; paths are absolute."""
    environment = template_environment(loader)
    environment.filters["quote"] = json.dumps  # what is JSON is YAML too
    return {
        name: environment.get_template(template).render(plan=plan)
        if template.endswith(".j2")
        else loader.get_source(environment, template)[0]
        for service in plan.services
        for name, template in service.files.items()
    }


def render_settings(plan: Plan, *, image: str, dotenv: str = "") -> str:
    """Return the `.env` of a compose file: the user's own text, unchanged, then the settings that the document uses."""
    own = dotenv if not dotenv or dotenv.endswith("\n") else dotenv + "\n"
    user = "0:0" if plan.is_rootless else plan.user
    return f"{own}COMPOSESIM_IMAGE={image}\nCOMPOSESIM_USER={user}\n"


def render_identity(plan: Plan) -> dict[str, str]:
    """Return `passwd` and `group` for the host image: getpass, torch and ssh look the user up."""
    user_id, group_id = plan.user_ids
    users = {0: "root:x:0:0:root:/root:/bin/sh", NOBODY: _NOBODY}
    groups = {0: "root:x:0:", NOBODY: f"nogroup:x:{NOBODY}:"}
    if user_id:
        users[user_id] = f"{plan.user_name}:x:{user_id}:{group_id}::{CONTAINER_HOME}:/bin/sh"
    if group_id:
        groups[group_id] = f"{plan.user_name}:x:{group_id}:"
    return {
        name: "".join(f"{line}\n" for line in lines.values()) for name, lines in (("passwd", users), ("group", groups))
    }


def _run_folder(name: str, *, read_only: bool = False, below: str = "") -> Mount:
    """Return the mount of a folder of the run; the source is relative to the compose file."""
    return Mount(source=f"./{below}{name}", target=f"{CONTAINER_FOLDER}/{name}", read_only=read_only)


def _own_folders(node: str, *, is_driven: bool) -> list[Mount]:
    """Return the mounts that only one container has: what it writes. The driver on the master reads what nodes write."""
    own = [_run_folder(kind, below=f"{NODES}/{node}/") for kind in KINDS]
    return [*own, _run_folder(NODES, read_only=True)] if is_driven and node == "master" else own


def _covers(mounts: Iterable[Mount], *, folder: str, real_path: Callable[[str], str]) -> list[Mount]:
    """
    Cover the folder of all runs in the project where these mounts show it: nodes must not replace what composesim reads there.

    The folders that lead to it are mounted on themselves, because nodes could rename them otherwise.
    """
    covers = []
    for above in PurePosixPath(folder).parents:  # PROJECT/.composesim; of a copy of a project, also that of the project
        runs = PurePosixPath(real_path(str(above)))
        for mount in (replace(each, source=real_path(each.source)) for each in mounts):
            source = PurePosixPath(mount.source)
            if runs.name == HIDDEN:
                between = [path for path in reversed(runs.parents) if source in path.parents and not mount.read_only]
                covers += [replace(mount, source=str(path), target=target_of(path, mount)) for path in between]
                covers += covers_of([mount], str(runs))
    return covers


def quote(value: object) -> str:
    """Quote a scalar so that Compose reads the same text: double quotes, and `$` doubled to prevent interpolation."""
    text = str(value)
    if _PLAIN.fullmatch(text):  # nearly all are
        return f'"{text}"'
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_UNPRINTABLE.sub(_escape, text)}"'


def quote_list(values: Iterable[object]) -> str:
    """Return a list of quoted scalars on one line."""
    return f"[{', '.join(quote(value) for value in values)}]"


def bind(mount: Mount, source: str) -> str:
    """Return a bind mount on one line; `source` is where the mount's source is for the engine."""
    read_only = ", read_only: true" if mount.read_only else ""
    return f"{{type: bind, source: {quote(source)}, target: {quote(mount.target)}{read_only}}}"


def published(ports: Iterable[PlannedPort]) -> str:
    """Return port mappings that only this machine can reach."""
    return quote_list(f"127.0.0.1:{port.host_port}:{port.port}" for port in ports)


def ports_of(service: PlannedService, plan: Plan) -> tuple[PlannedPort, ...]:
    """Return the ports to publish on a service: the service's own, and those of services that share the network."""
    if service.network_of:
        return ()
    inside = (each for each in plan.services if service.name in (each.name, each.network_of))
    return tuple(port for each in inside for port in each.ports)


def comment(value: object) -> str:
    """Shorten text so that it fits into one comment line."""
    return _UNPRINTABLE.sub(" ", str(value))[:200]


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


_BEFORE_SERVICE = re.compile(r"^(?=  \S)", re.MULTILINE)
# A key, a value that YAML reads as it is written, any other value. Only plain values do not distinguish services.
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*":)|"[ !#-\[\]-~]*"|("(?:[^"\\]|\\.)*")')


class InvalidDocumentError(ComposesimError):
    """composesim rendered an invalid Compose document, which is a bug."""

    exit_code = 70


def check_document(text: str, schema: Mapping[str, Any]) -> None:
    """
    Raise InvalidDocumentError if the document violates the schema.

    Services that differ only in plain quoted values are parsed and validated once, so that a thousand nodes cost as much as one.
    The patterns in the schema apply to names only, and all names are validated.
    """
    import jsonschema  # takes 0.04 s, and only `render` needs it

    before, header, rest = text.partition("\nservices:\n")
    services, networks, after = rest.partition("\nnetworks:\n")
    blocks = {block.partition(":")[0].strip(): block for block in _BEFORE_SERVICE.split(services) if block.strip()}
    kept = lambda quoted: quoted[1] or quoted[2] or ""  # noqa: E731 - twice as fast as a template of groups
    distinct = {_QUOTED.sub(kept, block).replace(name, ""): block for name, block in blocks.items()}
    sampled = "".join((before, header, *distinct.values(), networks, after))
    sample = yaml.load(sampled, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    of_services = schema["properties"]["services"]
    of_names = {**of_services, "patternProperties": dict.fromkeys(of_services["patternProperties"], True)}
    names = {"services": dict.fromkeys(blocks)}
    for part, rules in ((sample, schema), (names, {"properties": {"services": of_names}})):
        error = jsonschema.exceptions.best_match(jsonschema.Draft7Validator(rules).iter_errors(part))
        if error:
            where = ".".join(str(step) for step in error.absolute_path)
            raise InvalidDocumentError(
                f"the rendered document violates the Compose schema at '{where}'", evidence=error.message
            )
