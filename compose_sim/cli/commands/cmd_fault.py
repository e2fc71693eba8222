"""Define `composesim fault`: inject a fault into a run. Each kind of fault is a subcommand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from compose_sim.cli.commands.interventions import event_of, intervene, print_result, running_folder
from compose_sim.cli.console import print_json, print_table, say
from compose_sim.cli.run_lookup import json_option, run_option, seconds
from compose_sim.core.faults.kind import FaultOption, flag_of
from compose_sim.core.faults.kinds import KINDS
from compose_sim.core.faults.parse import find_kind, parse_fault
from compose_sim.core.faults.record import record_of_event
from compose_sim.core.text import format_seconds


class FaultGroup(click.Group):
    """The kinds of faults, by name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept `rank 2 exit 3` for `rank-exit 2 --code 3`."""
        if args[:1] == ["rank"] and len(args) > 2:
            rank, what, *rest = args[1:]
            code = ["--code", rest.pop(0)] if what == "exit" and rest and not rest[0].startswith("-") else []
            args = [f"rank-{what}", rank, *code, *rest]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return `list`, then all kinds."""
        return [*super().list_commands(ctx), *KINDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a kind."""
        return super().get_command(ctx, cmd_name) or _command_of(cmd_name)


_HELP = """Inject a fault into a run.

\b
composesim fault kill node-1 --for 20s
composesim fault rank 2 raise
composesim fault list
"""


@click.group("fault", cls=FaultGroup, help=_HELP)
def command() -> None:
    """Group all kinds."""


@command.command("list")
@json_option
def list_kinds(as_json: bool) -> None:
    """List all kinds of faults, and which of them this machine supports."""
    from compose_sim.engine.lifetime.doctor_facts import why_unsupported
    from compose_sim.engine.registry import available_plug_ins

    engines = ("docker", "local", *available_plug_ins())
    lacks = {kind.name: {engine: why_unsupported(kind, engine) for engine in engines} for kind in KINDS.values()}
    if as_json:
        faults = [
            {"kind": kind.name, "usage": kind.usage, "summary": kind.summary, "engines": list(kind.engines)}
            | {"can": {engine: not why for engine, why in lacks[kind.name].items()}, "lacks": lacks[kind.name]}
            for kind in KINDS.values()
        ]
        print_json({"schema_version": 1, "faults": faults})
        return
    rows = [
        [kind.name, *("no" if why else "yes" for why in lacks[kind.name].values()), kind.summary]
        for kind in KINDS.values()
    ]
    print_table(["fault", *engines, "what it does"], rows)
    for kind in KINDS.values():
        for engine in engines:
            if engine in kind.engines and lacks[kind.name][engine]:
                say(f"{kind.name} on {engine}: {lacks[kind.name][engine]}")


def _command_of(name: str) -> click.Command:
    kind = find_kind(name)
    parameters: list[Callable[[Any], Any]] = [json_option, run_option]
    if kind.lasts:
        text = "Heal it after this time, such as 20s."
        parameters.append(click.option("--for", "for_s", metavar="TIME", callback=seconds, help=text))
    parameters += [_click_option(key, option) for key, option in kind.options.items()]
    if kind.target != "none":
        parameters.append(click.argument("arguments", nargs=-1, required=True, metavar=kind.arguments))
    function: Callable[..., None] = partial(_inject, name)
    for parameter in parameters:
        function = parameter(function)
    return click.command(name, help=kind.summary, short_help=kind.summary)(function)


def _click_option(key: str, option: FaultOption) -> Callable[[Any], Any]:
    text = option.help if option.default in (..., False) else f"{option.help}  [default: {option.default}]"
    value = {"metavar": option.metavar, "required": option.default is ...} if option.metavar else {"is_flag": True}
    return click.option(flag_of(key), key, help=text, default=None, **value)


def _inject(
    name: str,
    *,
    run: str | None,
    as_json: bool,
    for_s: float | None = None,
    arguments: tuple[str, ...] = (),
    **options: Any,
) -> None:
    folder = running_folder(run)
    fault = parse_fault(name, arguments, options, plan=folder.read_plan(), for_s=for_s)
    record = record_of_event(event_of("fault", *intervene(folder, "fault", fault)))
    healed = f"; healed after {format_seconds(record.for_s)}" if record.for_s else ""
    print_result(record.to_dict(), f"{record.id}: {record.text}{healed}", as_json=as_json)
