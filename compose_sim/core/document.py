"""How does a Plan read as a Compose document? As text, through `docker-compose.yml.j2` and one quoting filter.

The templates come through a Jinja loader that the caller hands in, so this module opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import jinja2

from compose_sim.core.environment import CONTAINER_HOME, SCRATCH
from compose_sim.core.plan import CONTAINER_FOLDER, Mount, Plan, PlannedPort
from compose_sim.core.templates import template_environment

_WRITTEN_TO = ("events", "logs", "observations", "shared", "debug")
# Where a run's own folders appear in every container; the sources are relative to the compose file.
_OWN_MOUNTS = [
    *(Mount(source=f"./{name}", target=f"{CONTAINER_FOLDER}/{name}", read_only=True) for name in ("node", "orders")),
    *(Mount(source=f"./{name}", target=f"{CONTAINER_FOLDER}/{name}") for name in _WRITTEN_TO),
]
_IDENTITY = [Mount(source=f"./identity/{name}", target=f"/etc/{name}", read_only=True) for name in ("passwd", "group")]
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
    }
    own_mounts = _OWN_MOUNTS + (_IDENTITY if plan.image == "host" else [])
    if plan.has_token:
        own_mounts = [*own_mounts, Mount(source="./secrets", target=f"{CONTAINER_FOLDER}/secrets", read_only=True)]
    if plan.mps:
        own_mounts = [*own_mounts, Mount(source="./mps", target=f"{CONTAINER_FOLDER}/mps")]
    in_memory = ["/tmp:exec,mode=1777", f"{CONTAINER_HOME}:exec,mode=1777"]
    if plan.scratch_bytes:
        in_memory.append(f"{SCRATCH}:mode=1777,size={plan.scratch_bytes}")
    template = environment.get_template("docker-compose.yml.j2")
    return template.render(plan=plan, own_mounts=own_mounts, in_memory=in_memory, folder=folder)


def render_settings(plan: Plan, *, image: str, dotenv: str = "") -> str:
    """The `.env` beside a compose file: the person's own text, unchanged, then the settings that the document asks for."""
    own = dotenv if not dotenv or dotenv.endswith("\n") else dotenv + "\n"
    return f"{own}COMPOSESIM_IMAGE={image}\nCOMPOSESIM_USER={plan.user}\n"


def render_identity(plan: Plan) -> dict[str, str]:
    """`passwd` and `group` for an image that is this machine's own files: getpass and torch look the user up."""
    user_id, group_id = plan.user.split(":")
    passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    group = "root:x:0:\nnogroup:x:65534:\n"
    if user_id != "0":
        passwd += f"{plan.user_name}:x:{user_id}:{group_id}::{CONTAINER_HOME}:/bin/sh\n"
    if group_id != "0":
        group += f"{plan.user_name}:x:{group_id}:\n"
    return {"passwd": passwd, "group": group}


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


def comment(value: object) -> str:
    """Text that stays within one comment line."""
    return _UNPRINTABLE.sub(" ", str(value))[:200]


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
