"""Run a command inside nodes, or attach the terminal or an editor to a rank that has stopped at `breakpoint()`."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from compose_sim.cli.console import echo, line_of_node, say
from compose_sim.cli.run_lookup import run_option, run_parameters, select_folder, select_live
from compose_sim.core.plan.debug_configuration import PORT, launch_file
from compose_sim.core.plan.model import node_name, one_rank
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.errors import ComposesimError, EngineError, SpecError

if TYPE_CHECKING:
    from compose_sim.engine.lifetime.attach import BreakpointWatch


_AT_ONCE = 16


@click.command("exec", context_settings={"allow_interspersed_args": False})
@run_option
@click.argument("node")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def exec_command(run: str | None, node: str, arguments: tuple[str, ...]) -> None:
    """Run a command inside NODE (node-1, 1, or all) of a running run.

    With `all`, every line of output starts with the name of the node, and the exit code is the highest.
    """
    argv = arguments[1:] if arguments[:1] == ("--",) else arguments
    if not argv:
        raise SpecError("no command was given", hint=f"composesim exec {node} -- nvidia-smi")
    engine, run, _ = select_live(run)
    statuses = engine.statuses(run)
    if node == "all":
        sys.exit(
            _execute_on_all(engine, run, [each.node for each in statuses if each.role == "node" and each.running], argv)
        )
    name = node if node == "master" else node_name(node, [status.node for status in statuses], run=run)
    if not any(status.node == name and status.running for status in statuses):
        raise SpecError(f"{name} of the run '{run}' is not running", hint="composesim ps")
    sys.exit(engine.execute(run, name, argv))


def _execute_on_all(engine: Engine, run: str, nodes: list[str], argv: Sequence[str]) -> int:
    if not nodes:
        raise SpecError(f"no node of the run '{run}' is running", hint="composesim ps")
    from concurrent.futures import ThreadPoolExecutor

    width = max(map(len, nodes))

    def execute(node: str) -> int:
        return engine.execute(run, node, argv, lambda line: echo(line_of_node(node, None, width, line)))

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return max(pool.map(execute, nodes))


@click.command("attach")
@click.option("--rank", "wanted", metavar="R", help="The rank to debug (default: the first one that waits).")
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
@run_parameters
def attach_command(wanted: str | None, now: bool, dap: int | None, run: str | None) -> None:
    """Attach to the debugger of a rank that waits at breakpoint(), or wait until the rank gets there.

    Ctrl-D and Ctrl-C leave the debugger, and the rank continues. --dap needs debugpy in the Python of the nodes.
    """
    from compose_sim.engine.lifetime.attach import BreakpointWatch
    from compose_sim.engine.run_folder.record import read_state

    folder = select_folder(run)
    plan = folder.read_plan()
    ranks = read_state(folder, metrics=False)[1].ranks.values()
    node, rank = one_rank(plan, wanted, waiting=[each.rank for each in ranks if each.at_breakpoint])
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
            if last := watch.last:
                message = f"the run '{folder.name}' is over; rank {rank} had stopped at {last.file}:{last.line}"
                raise ComposesimError(message, hint=f"composesim rerun {folder.name}")
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
    from compose_sim.engine.lifetime.attach import relay_editor, start_adapter

    refusal = start_adapter(link)
    if refusal:
        raise EngineError(f"the rank cannot be debugged in an editor: {refusal}", hint="pip install debugpy")
    port = listener.getsockname()[1]
    say(f"debug adapter on 127.0.0.1:{port}, until the editor disconnects. VS Code, .vscode/launch.json:")
    echo(launch_file(port=port), nl=False)
    say("PyCharm and other DAP clients: attach to the same host and port, with the request 'attach'.")
    relay_editor(link, listener)


def _prompt(link: socket.socket, watch: BreakpointWatch) -> None:
    from compose_sim.engine.lifetime.attach import relay, relay_typed

    link.sendall(b"pdb\n")
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives `input` line editing and a history
        relay_typed(link, lambda text: echo(text, nl=False), input)
    else:
        relay(link, sys.stdin.fileno(), lambda text: echo(text, nl=False), watch)
