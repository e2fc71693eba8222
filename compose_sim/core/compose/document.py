"""How does a Plan read as a Compose document? As text, through `docker-compose.yml.j2` and one quoting filter.

The templates come through a Jinja loader that the caller hands in, so this module opens no file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import jinja2

from compose_sim.core.compose.templates import template_environment
from compose_sim.core.plan.environment import CONTAINER_HOME, SCRATCH
from compose_sim.core.plan.model import CONTAINER_FOLDER, NOBODY, Mount, Plan, PlannedPort, PlannedService

_WRITTEN_TO = ("events", "logs", "observations", "shared", "debug")
# Where a run's own folders appear in every container; the sources are relative to the compose file.
_OWN_MOUNTS = [
    *(Mount(source=f"./{name}", target=f"{CONTAINER_FOLDER}/{name}", read_only=True) for name in ("node", "control")),
    *(Mount(source=f"./{name}", target=f"{CONTAINER_FOLDER}/{name}") for name in _WRITTEN_TO),
]
_IDENTITY = [Mount(source=f"./identity/{name}", target=f"/etc/{name}", read_only=True) for name in ("passwd", "group")]
_NOBODY = f"nobody:x:{NOBODY}:{NOBODY}:nobody:/nonexistent:/usr/sbin/nologin"
# Characters that YAML does not allow unescaped in a double-quoted scalar, or would take for a line break.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def render_document(plan: Plan, *, loader: jinja2.BaseLoader, folder: str) -> str:
    """The compose file of a plan. `folder` is where the file will lie, for the label that leads back to it."""
    environment = template_environment(loader)
    environment.filters |= {
        "quote": quote,
        "quote_list": quote_list,
        "comment": comment,
        "project": project_name,
        "published": published,
        "ports_of": ports_of,
    }
    identity = _IDENTITY if plan.brings_users else []
    own_mounts = _OWN_MOUNTS + identity
    if plan.is_driven:
        own_mounts = [*own_mounts, Mount(source="./secrets", target=f"{CONTAINER_FOLDER}/secrets", read_only=True)]
    if plan.mps:
        own_mounts = [*own_mounts, Mount(source="./mps", target=f"{CONTAINER_FOLDER}/mps")]
    in_memory = ["/tmp:exec,mode=1777", f"{CONTAINER_HOME}:exec,mode=1777"]
    if plan.scratch_bytes:
        in_memory.append(f"{SCRATCH}:mode=1777,size={plan.scratch_bytes}")
    template = environment.get_template("docker-compose.yml.j2")
    return template.render(plan=plan, own_mounts=own_mounts, identity=identity, in_memory=in_memory, folder=folder)


def render_service_files(plan: Plan, *, loader: jinja2.BaseLoader) -> dict[str, str]:
    """What services are given to read: text by name below the run's `services`. What does not end in .j2 is taken as it is."""
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
    """The `.env` beside a compose file: the person's own text, unchanged, then the settings that the document asks for."""
    own = dotenv if not dotenv or dotenv.endswith("\n") else dotenv + "\n"
    return f"{own}COMPOSESIM_IMAGE={image}\nCOMPOSESIM_USER={plan.user}\n"


def render_identity(plan: Plan) -> dict[str, str]:
    """`passwd` and `group` for an image that is this machine's own files: getpass, torch and ssh look the user up."""
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


def project_name(run: str) -> str:
    """The Compose project of a run."""
    return f"composesim-{run}"


def quote(value: object) -> str:
    """A scalar that comes back from Compose as the very same text: YAML double quotes, and `$` doubled against interpolation."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_UNPRINTABLE.sub(_escape, text)}"'


def quote_list(values: Iterable[object]) -> str:
    """A list of scalars on one line."""
    return f"[{', '.join(quote(value) for value in values)}]"


def published(ports: Iterable[PlannedPort]) -> str:
    """Ports that are open to this machine, and to nobody else."""
    return quote_list(f"127.0.0.1:{port.host_port}:{port.port}" for port in ports)


def ports_of(service: PlannedService, plan: Plan) -> tuple[PlannedPort, ...]:
    """What is published of a service: its own ports, and those of services that live in its network."""
    if service.network_of:
        return ()
    inside = (each for each in plan.services if service.name in (each.name, each.network_of))
    return tuple(port for each in inside for port in each.ports)


def comment(value: object) -> str:
    """Text that stays within one comment line."""
    return _UNPRINTABLE.sub(" ", str(value))[:200]


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
