"""What does `composesim fault` do? It breaks something of a run on purpose; each kind of fault is a verb of its own below it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from compose_sim.cli.commands.interventions import intervene, run_under_way, tell
from compose_sim.cli.console import print_json, print_table, say
from compose_sim.cli.run_lookup import json_option, run_option, seconds
from compose_sim.core.faults import KINDS, lasts, options_of, target_of
from compose_sim.core.faults.parse import kind_named, read_fault
from compose_sim.core.units import format_seconds


class Kinds(click.Group):
    """Kinds of faults by name, each from `core/faults/<kind>.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`rank 2 exit 3` is another way to say `rank-exit 2 --code 3`."""
        if args[:1] == ["rank"] and len(args) > 2:
            rank, what, *rest = args[1:]
            code = ["--code", rest.pop(0)] if what == "exit" and rest and not rest[0].startswith("-") else []
            args = [f"rank-{what}", rank, *code, *rest]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """`list`, then all kinds."""
        return [*super().list_commands(ctx), *KINDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a kind, made now."""
        return super().get_command(ctx, cmd_name) or _command_of(cmd_name)


_HELP = """Break something of a run that is under way.

\b
composesim fault kill node-1 --for 20s
composesim fault rank 2 raise
composesim fault list
"""


@click.group("fault", cls=Kinds, help=_HELP)
def command() -> None:
    """All kinds."""


@command.command("list")
@json_option
def list_kinds(as_json: bool) -> None:
    """List the kinds of faults, and what this machine can do of them."""
    from compose_sim.engine.lifetime.fault_support import why_not

    kinds = {name: kind_named(name) for name in KINDS}
    lacks = {name: {engine: why_not(kind, engine) for engine in ("docker", "local")} for name, kind in kinds.items()}
    if as_json:
        faults = [
            {"kind": name, "usage": KINDS[name], "summary": kind.SUMMARY, "engines": list(kind.ENGINES)}
            | {"can": {engine: not why for engine, why in lacks[name].items()}, "lacks": lacks[name]}
            for name, kind in kinds.items()
        ]
        print_json({"schema_version": 1, "faults": faults})
        return
    marks = {name: [("no" if why else "yes") for why in lacks[name].values()] for name in kinds}
    print_table(
        ["fault", "docker", "local", "what it does"], [[name, *marks[name], kinds[name].SUMMARY] for name in kinds]
    )
    for name, kind in kinds.items():
        for engine in kind.ENGINES:
            if lacks[name][engine]:
                say(f"{name} on {engine}: {lacks[name][engine]}")


def _command_of(name: str) -> click.Command:
    kind = kind_named(name)
    options: list[Callable[[Any], Any]] = [json_option, run_option]
    if lasts(kind):
        text = "Heal it after this time, such as 20s."
        options.append(click.option("--for", "for_s", metavar="TIME", callback=seconds, help=text))
    for key, (parse, default, text) in options_of(kind).items():
        flag = f"--{key.replace('_', '-')}"
        said = text if default in (..., None, False, "") else f"{text}  [default: {default}]"
        value = {"is_flag": True} if parse is bool else {"metavar": key.upper(), "required": default is ...}
        options.append(click.option(flag, key, help=said, default=None, **value))
    if target_of(kind) != "none":
        options.append(
            click.argument("words", nargs=-1, required=True, metavar=KINDS[name].split(" [")[0].split(" --")[0])
        )
    function: Callable[..., None] = partial(_break, name)
    for option in options:
        function = option(function)
    return click.command(name, help=kind.SUMMARY, short_help=kind.SUMMARY)(function)


def _break(
    name: str,
    *,
    run: str | None,
    as_json: bool,
    for_s: float | None = None,
    words: tuple[str, ...] = (),
    **options: Any,
) -> None:
    folder = run_under_way(run)
    fault = read_fault(name, words, options, plan=folder.read_plan(), for_s=for_s)
    request, events = intervene(folder, "fault", fault)
    done = next(event for event in events if event.kind == "fault" and event.data["id"] == request)
    healed = f"; healed after {format_seconds(for_s)}" if for_s else ""
    told = {key: done.data[key] for key in ("id", "kind", "nodes", "rank", "text", "for_s")}
    tell(told, f"{request}: {done.data['text']}{healed}", as_json=as_json)
