"""Parse and check the values of a spec: types for the fields, each with a JSON schema."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from compose_sim.core.network.links import check_links
from compose_sim.core.request.names import CHECK_IDS, RUN_NAME, SERVICE_NAMES, check_service, parse_gpus, unknown_check
from compose_sim.core.text import format_bytes, parse_bytes, parse_seconds

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")  # Docker checks the rest; none of these is special in `.env`
_MIN_BYTES = 6 << 20  # Docker refuses a memory limit below 6 MiB

# Nodes with 1, 2 and 4 ranks train a small model under DDP with limits of 256, 352 and 512 MiB, and not with 240, 320 and 448 MiB.
TORCH_NODE_BYTES, TORCH_RANK_BYTES = 160 << 20, 96 << 20


def check_environment(env: dict[str, str]) -> dict[str, str]:
    """Return `env` unchanged; raise ValueError for a name or a value that no process can have."""
    for name, value in env.items():
        if not _ENVIRONMENT_NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not a valid name for an environment variable")
        if name.startswith("COMPOSESIM_"):
            raise ValueError(f"'{name}' is reserved: composesim sets the variables that start with COMPOSESIM_")
        if "\0" in value:
            raise ValueError(f"the value of '{name}' contains a NUL character")
        if _has_surrogates(value):
            raise ValueError(f"the value of '{name}' is not valid UTF-8")
    return env


def _size(value: Any) -> int:
    size = parse_bytes(value)
    if size < _MIN_BYTES:
        raise ValueError(f"'{value}' is too small: at least {format_bytes(_MIN_BYTES)}")
    return size


def _memory(value: Any) -> int:
    try:
        return _size(value)
    except ValueError as error:
        if "too small" not in str(error):
            raise
        least = format_bytes(TORCH_NODE_BYTES + TORCH_RANK_BYTES)
        raise ValueError(f"{error}, and {least} for a node that trains with torch") from None


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not the name of an image: write it like pytorch/pytorch:latest")
    return text


def _range_of_nodes(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,3}:[1-9][0-9]{0,3}", text):
        raise ValueError(f"'{text:.80}' is not MIN:MAX nodes, such as 2:4")
    if int(text.partition(":")[0]) > int(text.partition(":")[2]):
        raise ValueError(f"'{text}' is not MIN:MAX nodes: the first number is the larger one")
    return text


def _gpus_of_one_node(gpus: str) -> str:
    if gpus in ("auto", "all", "emulated"):
        raise ValueError(f"'{gpus}' applies to all nodes; a single node takes none, or numbers or UUIDs of GPUs")
    return gpus


def _links(texts: tuple[str, ...]) -> tuple[str, ...]:
    check_links(texts)
    return texts


def _run_name(name: str) -> str:
    if not RUN_NAME.fullmatch(name):
        plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:48].rstrip("-_")
        such = f", such as '{plain}'" if plain else ""
        raise ValueError(f"'{name}' is not a run name: use at most 48 lower-case letters, digits, - and _{such}")
    return name


def _subnet(text: str) -> str:
    if ip_network(text).version != 4:
        raise ValueError(f"'{text}' is not an IPv4 network")
    return text


def _mount(text: str) -> str:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise ValueError(f"'{text}' is not SOURCE:TARGET or SOURCE:TARGET:ro")
    if not parts[1].startswith("/") or not parts[1].strip("/"):
        raise ValueError(f"the target of '{text}' must be an absolute path below /")
    return text


def _printable(text: str) -> str:
    if "\0" in text or _has_surrogates(text):
        raise ValueError(f"{text!r} is not valid UTF-8")
    return text


def _keep(value: Any) -> Any:
    if value not in (True, False, "true", "false", "failed"):
        raise ValueError(f"'{value}' is neither true, false nor failed")
    return value


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _check_id(name: str) -> str:
    if problem := unknown_check(name):
        raise ValueError(problem)
    return name


def _one_or_more(value: Any) -> Any:
    """Accept one text in place of a list."""
    return (value,) if isinstance(value, str) else value


def _comma_separated(value: Any) -> Any:
    """Accept `a,b`, `[a, b]` and `[a, "b,c"]`."""
    given = [value] if isinstance(value, str) else value
    if isinstance(given, list | tuple) and all(isinstance(entry, str) for entry in given):
        return tuple(dict.fromkeys(word.strip() for entry in given for word in entry.split(",") if word.strip()))
    return value


Size = Annotated[
    int, BeforeValidator(_size), WithJsonSchema({"type": ["string", "integer"], "examples": ["512m", "2g"]})
]
Memory = Annotated[
    int, BeforeValidator(_memory), WithJsonSchema({"type": ["string", "integer"], "examples": ["512m", "2g"]})
]
Duration = Annotated[
    float,
    BeforeValidator(parse_seconds),
    Field(gt=0),
    WithJsonSchema({"type": ["string", "number"], "examples": ["90s", "10m"]}),
]
DurationOrNever = Annotated[Duration | None, BeforeValidator(lambda value: None if value == "never" else value)]
Gpus = Annotated[
    str,
    BeforeValidator(parse_gpus),
    WithJsonSchema({"type": ["string", "integer", "array"], "examples": ["all", "none", "0,1", "GPU-8932f937"]}),
]
Keep = Annotated[bool | Literal["failed"], BeforeValidator(_keep), WithJsonSchema({"enum": [True, False, "failed"]})]
NodeGpus = Annotated[Gpus, AfterValidator(_gpus_of_one_node)]
Cpus = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1024)]
NodeRange = Annotated[str, AfterValidator(_range_of_nodes)]
RunName = Annotated[str, AfterValidator(_run_name)]
Subnet = Annotated[str, AfterValidator(_subnet)]
Text = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Name = Annotated[str, AfterValidator(_printable)]
Image = Annotated[str, Field(min_length=1), AfterValidator(_image)]
Argument = Annotated[Text, AfterValidator(_printable)]
Environment = Annotated[dict[str, Text], AfterValidator(check_environment)]
Mount = Annotated[str, AfterValidator(_mount)]
Links = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more),
    AfterValidator(_links),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]
CheckIds = Annotated[
    tuple[Annotated[str, AfterValidator(_check_id)], ...],
    BeforeValidator(_comma_separated),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"enum": [*CHECK_IDS]}}, {"type": "string"}]}),
]
Services = Annotated[
    tuple[Annotated[str, AfterValidator(check_service)], ...],
    BeforeValidator(_comma_separated),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}, "examples": [[*SERVICE_NAMES]]}),
]
