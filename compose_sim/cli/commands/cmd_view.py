"""Show a run as a page in the browser, live or finished."""

from __future__ import annotations

import webbrowser
from contextlib import suppress

import click

from compose_sim.cli.console import echo, say
from compose_sim.cli.run_lookup import named_folder, run_option
from compose_sim.errors import SpecError
from compose_sim.view.server import ViewServer


@click.command("view")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port (default: a free one).")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
@click.option("--read-only", is_flag=True, help="Disable the actions of the page: faults, links, scale.")
def command(name: str | None, run: str | None, port: int, opens: bool, read_only: bool) -> None:
    """Serve a page with the timeline, cluster, metrics, checks and logs of RUN on 127.0.0.1, until Ctrl-C."""
    folder = named_folder(name or run)
    folder.read_plan()
    try:
        server = ViewServer(folder, port, read_only=read_only)
    except OSError as error:
        raise SpecError(f"--port: {port} cannot be used: {error.strerror}", hint="composesim view") from None
    with server:
        echo(server.address)
        tunnel = f"ssh -L {server.server_port}:127.0.0.1:{server.server_port} HOST"
        say(f"Press Ctrl-C to stop. From another machine: {tunnel}")
        if opens:
            webbrowser.open(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
