"""Build the command lines of recipes, and check and parse their options (`--option NAME=VALUE`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from compose_sim.core.plan.model import Program
from compose_sim.core.plan.node_roles import role_command
from compose_sim.core.plan.recipes import ClusterLayout
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.text import did_you_mean
from compose_sim.errors import SpecError


def driver_master_command(cluster: ClusterLayout, driver: tuple[str, ...]) -> tuple[str, ...]:
    """Start the master; after `--` follow the driver (the arguments of `python`), another `--`, and the user's program."""
    return (
        cluster.python,
        *role_command(cluster.folder, "driver-master"),
        *("--slots", ",".join(map(str, slots_of(cluster.spec)))),
        *("--host", cluster.host),
        *("--port", str(cluster.port)),
        *("--head-port", str(cluster.store_port)),
        *(("--node-timeout", f"{cluster.spec.node_timeout:g}") if cluster.spec.node_timeout else ()),
        "--",
        *(*driver, "--"),
        *program_arguments(cluster.program),
    )


def driver_node_command(cluster: ClusterLayout, launcher: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Start the node's agent, which starts `arguments` when the driver accepts nodes."""
    return (
        *(cluster.python, *role_command(cluster.folder, "agent")),
        *("--launcher", launcher),
        *("--", *arguments),
    )


def slots_of(spec: ClusterSpec) -> list[int]:
    """Return the number of ranks on each node."""
    return [node.nproc_per_node or spec.nproc_per_node for node in spec.node_specs]


def program_arguments(program: Program) -> tuple[str, ...]:
    """Return the arguments of `python` that run the user's program."""
    return (*(("-m",) if program.is_module else ()), program.target, *program.arguments)


def master_command(cluster: ClusterLayout, *, serves_store: bool) -> tuple[str, ...]:
    """Start the rendezvous master; `serves_store` adds a TCPStore to which ranks connect."""
    spec = cluster.spec
    return (
        cluster.python,
        *role_command(cluster.folder, "master"),
        *("--nodes", str(spec.initial_node_count)),
        *(("--min-nodes", str(spec.elastic_range[0])) if spec.elastic_range else ()),
        *("--max-restarts", str(spec.max_restarts)),
        *(("--node-timeout", f"{spec.node_timeout:g}") if spec.node_timeout else ()),
        *("--port", str(cluster.port)),
        *("--store-host", cluster.host),
        *("--store-port", str(cluster.store_port)),
        *(() if serves_store else ("--no-store",)),
    )


def node_command(cluster: ClusterLayout, launcher: str, *, first_rank_listens: bool) -> tuple[str, ...]:
    """Start the node's agent; after `--` follows the program of each rank."""
    program = cluster.program
    # In containers, the master names the first node of each round: node-0 may be gone.
    listens_here = first_rank_listens and not cluster.contained
    return (
        cluster.python,
        *role_command(cluster.folder, "agent"),
        *("--launcher", launcher),
        *(("--master-address", cluster.host) if listens_here else ()),
        *(("--module",) if program.is_module else ()),
        "--",
        *(program.target, *program.arguments),
    )


Value = TypeVar("Value")
_SWITCH = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


def check_options(given: Mapping[str, str], known: Mapping[str, str], *, recipe: str) -> None:
    """Raise SpecError for an option that the recipe does not have."""
    for name in given:
        if name not in known:
            takes = did_you_mean(name, known) if known else ": it takes none"
            raise SpecError(
                f"recipe '{recipe}' has no option '{name}'{takes}", hint=f"composesim up --recipe {recipe} --help"
            )


def option_of(
    spec: ClusterSpec, name: str, parse: Callable[[str], Value], default: Value, *, expected: str, example: str
) -> Value:
    """Return the parsed value of an option, or `default`; raise SpecError if `parse` raises ValueError."""
    text = spec.options.get(name)
    try:
        return default if text is None else parse(text)
    except ValueError:
        hint = f"composesim up --recipe {spec.recipe} --option {name}={example} …"
        raise SpecError(f"option '{name}' is '{text}': expected {expected}", hint=hint) from None


def switch(spec: ClusterSpec, name: str, *, default: bool = False) -> bool:
    """Return the value of an option that is on or off."""
    return option_of(spec, name, _on_or_off, default, expected="on or off", example="on")


def whole_number(spec: ClusterSpec, name: str, default: int, *, least: int = 0) -> int:
    """Return the value of an option that is a whole number."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise ValueError(text)
        return int(text)

    expected = f"a whole number of at least {least}"
    return option_of(spec, name, parse, default, expected=expected, example=str(max(least, 2)))


def _on_or_off(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError(text)
    return _SWITCH[text.lower()]
