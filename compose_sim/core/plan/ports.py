"""On which ports of this machine does a run open what it publishes? Those asked for, or well-known ones, or the next that are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compose_sim.core.plan.model import Choice, PlannedPort
from compose_sim.errors import SpecError

_LAST = 65535


def choose_ports(
    wanted: Sequence[PlannedPort], *, asked: Mapping[str, int], listening: Mapping[int, str], shared: bool
) -> tuple[dict[str, PlannedPort], tuple[Choice, ...]]:
    """
    Each port by its name, with its port on this machine; and what is to be said where that is not the well-known one.

    `asked` are ports by name; `listening` says of each port that is taken by whom. `shared`: services listen on this machine's own
    ports, and therefore on the chosen one. SpecError for a name that nothing has, and for a port that is asked for and taken.
    """
    for name in asked:
        if name not in {port.name for port in wanted}:
            names = ", ".join(port.name for port in wanted)
            has = f"this run publishes {names}" if names else "this run publishes nothing"
            raise SpecError(f"nothing named '{name}' is published: {has}", hint="composesim up --with jupyter …")
    taken = {**listening}
    for name, number in asked.items():
        if number in taken:
            raise port_taken(name, number, taken[number], free=next_free(number, taken))
        taken[number] = f"'{name}' of this run"
    chosen, choices = {}, []
    for port in wanted:
        number = asked.get(port.name) or next_free(port.port, taken)
        if port.name not in asked and number != port.port:
            why = f"{port.port} is taken by {taken[port.port]}"
            choices.append(Choice(what="port", value=f"{port.name} {number}", why=why))
        taken.setdefault(number, f"'{port.name}' of this run")
        chosen[port.name] = replace(port, host_port=number, port=number if shared else port.port)
    return chosen, tuple(choices)


def port_taken(name: str, number: int, who: str, *, free: int) -> SpecError:
    """What is said where a port of this machine cannot be had."""
    return SpecError(
        f"port {number} of this machine, on which '{name}' was to open, is taken by {who}",
        hint=f"composesim up --publish {name}={free} …, or see who it is: ss -ltnp 'sport = :{number}'",
    )


def next_free(first: int, taken: Mapping[int, str]) -> int:
    """The first port from that one on that nobody has; SpecError where there is none."""
    number = next((number for number in range(first, _LAST + 1) if number not in taken), 0)
    if not number:
        raise SpecError(f"no port from {first} on is free on this machine", hint="ss -ltn")
    return number
