"""Choose the ports of this machine on which a run publishes services: the requested, the usual or the next free ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from compose_sim.core.plan.model import Choice, PlannedPort
from compose_sim.errors import SpecError

_LAST = 65535


def choose_ports(
    ports: Sequence[PlannedPort], *, requested: Mapping[str, int], listening: Mapping[int, str], shared: bool
) -> tuple[dict[str, PlannedPort], tuple[Choice, ...]]:
    """
    Return each port with the port on this machine, by name, and a Choice for each that is not the usual one.

    `listening` maps the ports that are in use to their users. If services share this machine's network (`shared`), they listen on the
    chosen port. Raises SpecError for an unknown name, and for a requested port that is in use.
    """
    for name in requested:
        if name not in {port.name for port in ports}:
            names = ", ".join(port.name for port in ports) or "nothing"
            raise SpecError(f"--publish '{name}': this run publishes {names}", hint="composesim up --with jupyter …")
    taken = {**listening}
    for name, number in requested.items():
        if number in taken:
            raise port_taken(name, number, taken[number], free=next_free(number, taken))
        taken[number] = f"'{name}' of this run"
    chosen, choices = {}, []
    for port in ports:
        number = requested.get(port.name) or next_free(port.port, taken)
        if port.name not in requested and number != port.port:
            why = f"{port.port} is in use by {taken[port.port]}"
            choices.append(Choice(what="port", value=f"{port.name} {number}", why=why))
        taken.setdefault(number, f"'{port.name}' of this run")
        chosen[port.name] = replace(port, host_port=number, port=number if shared else port.port)
    return chosen, tuple(choices)


def port_taken(name: str, number: int, who: str, *, free: int) -> SpecError:
    """Return the error for a port that is in use."""
    return SpecError(
        f"port {number} for '{name}' is in use by {who}",
        hint=f"composesim up --publish {name}={free} …, or find the process: ss -ltnp 'sport = :{number}'",
    )


def next_free(first: int, taken: Mapping[int, str]) -> int:
    """Return the first free port from `first` on; raise SpecError if there is none."""
    number = next((number for number in range(first, _LAST + 1) if number not in taken), 0)
    if not number:
        raise SpecError(f"this machine has no free port from {first} on", hint="ss -ltn")
    return number
