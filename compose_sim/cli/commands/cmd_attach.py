"""Attach the terminal or an editor to a rank that has stopped at `breakpoint()`, or stop it where it is."""

from __future__ import annotations

import contextlib
import socket
import sys

import click

from compose_sim.cli.console import echo, say
from compose_sim.cli.run_lookup import run_option, select_folder
from compose_sim.core.plan.debug_configuration import PORT, launch_file
from compose_sim.core.plan.selectors import one_rank
from compose_sim.engine.lifetime.attach import BreakpointWatch, relay, relay_editor, relay_typed, start_adapter
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.errors import ComposesimError, EngineError, SpecError


@click.command("attach")
@click.option("--rank", "wanted", metavar="R", help="The rank to debug (default: the only one).")
@click.option(
    "--now", is_flag=True, help="Stop the rank at the line that it executes, without breakpoint() in the script."
)
@click.option(
    "--dap",
    is_flag=False,
    flag_value=str(PORT),
    type=click.IntRange(0, 65535),
    metavar="[PORT]",
    help=f"Debug in an editor: serve the Debug Adapter Protocol on 127.0.0.1 (default: {PORT}; 0: any free port).",
)
@run_option
def command(wanted: str | None, now: bool, dap: int | None, run: str | None) -> None:
    """Attach to the debugger of a rank that waits at breakpoint(), or wait until the rank gets there.

    Ctrl-D and Ctrl-C leave the debugger, and the rank continues. --dap needs debugpy in the Python of the nodes.
    """
    folder = select_folder(run, elsewhere=False)
    plan = folder.read_plan()
    node, rank = one_rank(plan, wanted)
    over = end_of(folder)
    watch = BreakpointWatch(folder.path, rank)
    with contextlib.ExitStack() as resources:
        listener = resources.enter_context(_listen(dap)) if dap is not None else None
        stop = watch.update()
        if stop and stop.phase == "attached":
            raise SpecError(
                f"another debugger is already attached to rank {rank}, at {stop.file}:{stop.line}",
                hint="composesim logs -f",
            )
        if now and not over.is_set() and not (stop and stop.phase == "waiting"):
            watch.stop_on = node
        elif not (stop or over.is_set()):
            say(f"waiting for rank {rank} to reach a breakpoint (Ctrl-C to leave)")
        link = watch.connect(over)
        if link is None or watch.stop is None:
            raise ComposesimError(
                f"the run '{folder.name}' ended before rank {rank} reached a breakpoint",
                hint=f"put breakpoint() on the path of rank {rank}, and run: composesim up {plan.program}",
            )
        resources.enter_context(link)
        say(f"rank {rank} on {node} is at {watch.stop.file}:{watch.stop.line}")
        if listener:
            _serve_editor(link, listener)
        else:
            _prompt(link, watch)
    say(f"rank {rank} continues" if not over.is_set() else f"the run '{folder.name}' is over")


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SpecError(f"port {port} is taken: {error.strerror}", hint=f"composesim attach --dap {port + 1}") from None


def _serve_editor(link: socket.socket, listener: socket.socket) -> None:
    refusal = start_adapter(link)
    if refusal:
        raise EngineError(f"the rank cannot be debugged in an editor: {refusal}", hint="pip install debugpy")
    port = listener.getsockname()[1]
    say(f"debug adapter on 127.0.0.1:{port}, until the editor disconnects. VS Code, .vscode/launch.json:")
    echo(launch_file(port=port), nl=False)
    say("PyCharm and other DAP clients: attach to the same host and port, with the request 'attach'.")
    relay_editor(link, listener)


def _prompt(link: socket.socket, watch: BreakpointWatch) -> None:
    link.sendall(b"pdb\n")
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives `input` line editing and a history
        relay_typed(link, lambda text: echo(text, nl=False), input)
    else:
        relay(link, sys.stdin.fileno(), lambda text: echo(text, nl=False), watch)
