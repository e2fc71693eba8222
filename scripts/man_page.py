"""Write the man page of composesim from the commands, for `make docs`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from compose_sim.cli import VERBS, group
from compose_sim.cli.cluster_command import ClusterCommand


def man_page() -> str:
    """Return the page in the format of man(7)."""
    lines = [
        ".TH COMPOSESIM 1",
        ".SH NAME",
        r"composesim \- run multi-node PyTorch training on one machine",
        ".SH SYNOPSIS",
        r".B composesim",
        r"\fIVERB\fR [\fIOPTIONS\fR] [\fIARGS\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(group.help or ""),
        ".SH OPTIONS",
        *_options(group),
    ]
    for name in VERBS:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        lines += [f".SH COMPOSESIM {_escaped(name.upper())}", *_paragraphs(command.help or ""), *_options(command)]
        if isinstance(command, click.Group):
            for inner in command.list_commands(click.Context(command)):
                child = command.get_command(click.Context(command), inner)
                assert child is not None
                lines += [f".SS composesim {_escaped(f'{name} {inner}')}", *_paragraphs(child.help or "")]
                lines += _options(child)
    return "\n".join(lines) + "\n"


def _options(command: click.Command) -> Iterator[str]:
    """Yield the options of a command. Of the options of `up`, which other verbs also take, only `up` lists all."""
    up = group.get_command(click.Context(group), "up")
    assert up is not None
    listed = (
        [_record(param) for param in up.params] if isinstance(command, ClusterCommand) and command is not up else []
    )
    if listed:
        yield from (".PP", "Takes the options of the cluster, as listed for up, and:")
    for param in command.params:
        record = _record(param)
        if record and record not in listed:
            yield from (".TP", rf"\fB{_escaped(record[0])}\fR", _escaped(record[1]))


def _record(param: click.Parameter) -> tuple[str, str] | None:
    return param.get_help_record(click.Context(group)) if isinstance(param, click.Option) else None


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text. One that click does not wrap keeps the lines."""
    for paragraph in text.strip().split("\n\n"):
        lines = [_escaped(line.strip()) for line in paragraph.splitlines()]
        if lines[0] == "\b":
            yield from (".PP", ".nf", *lines[1:], ".fi")
        else:
            yield from (".PP", " ".join(lines))


def _escaped(text: str) -> str:
    """Return text that roff prints as it is: a dash is a minus, and a dot or a quote may begin a line."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain
