"""Show a run, live or finished: its report, its page, its timeline, a profile of some steps, and the stacks of its ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compose_sim.cli.console import echo, print_json, say
from compose_sim.cli.run_lookup import FILE, FOLDER, json_option, junit_option, named_folder, run_option, seconds
from compose_sim.core.events.events import Event
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError

if TYPE_CHECKING:
    from compose_sim.core.view.trace import Profile

_HTML = "Write a page with the timeline, metrics, checks and logs: one file that opens from disk."
_BUNDLE = "Write a ZIP file for a ticket: report, page, events, logs, stacks and plan, without secrets."
_TRACE = "The file to write (default: RUN.trace.json). FILE.zip has one file per node, for Perfetto 58 or newer."
_MAX_STEPS = 100  # a profile of a few steps of a large model has hundreds of megabytes


@click.command("report")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@json_option
@junit_option
@click.option("--html", "html_file", type=FILE, help=_HTML)
@click.option("--against", metavar="OLD", help="A finished run that the page of --html shows beside this one.")
@click.option("--bundle", "bundle_file", type=FILE, help=_BUNDLE)
def report_command(
    name: str | None,
    run: str | None,
    as_json: bool,
    junit_file: Path | None,
    html_file: Path | None,
    against: str | None,
    bundle_file: Path | None,
) -> None:
    """Show the report of RUN, a name or the folder of a run (default: the latest run of this project)."""
    from compose_sim.cli.views.page import write_bundle, write_junit, write_page
    from compose_sim.cli.views.report import print_report
    from compose_sim.engine.run_folder.record import report_of

    folder = named_folder(name or run)
    if against and not html_file:
        raise SpecError("--against shows a run in the page of --html", hint=f"--html {folder.name}.html")
    other = named_folder(against) if against else None
    if other and other.is_claimed():
        raise SpecError(
            f"--against: the run '{other.name}' is still running", hint=f"composesim wait --run {other.name}"
        )
    if folder.is_claimed():
        # A lock that cannot be opened, such as another user's, does not tell whether the run is over: SpecError says why.
        os.close(folder.open_lock())
        raise SpecError(f"the run '{folder.name}' is still running", hint=f"composesim wait --run {folder.name}")
    report = report_of(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        print_report(report)
    unwritten = write_junit(junit_file, report) if junit_file else 0
    unwritten = (write_page(html_file, folder, against=other) if html_file else 0) or unwritten
    sys.exit((write_bundle(bundle_file, folder) if bundle_file else 0) or unwritten)


@click.command("view")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port (default: a free one).")
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
@click.option("--read-only", is_flag=True, help="Disable the actions of the page: faults, links, scale.")
def view_command(name: str | None, run: str | None, port: int, opens: bool, read_only: bool) -> None:
    """Serve a page with the timeline, cluster, metrics, checks and logs of RUN on 127.0.0.1, until Ctrl-C."""
    import webbrowser

    from compose_sim.view.server import ViewServer

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
            webbrowser.open(server.address_to_open)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@click.command("trace")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("-o", "--output", type=FILE, help=_TRACE)
def trace_command(name: str | None, run: str | None, output: Path | None) -> None:
    """Write the steps, collectives, messages, faults and usage of RUN as one trace, for ui.perfetto.dev or chrome://tracing."""
    folder = named_folder(name or run)
    say(_write_trace(output or Path(f"{folder.name}.trace.json"), folder))


@click.command("profile")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option(
    "--steps", type=click.IntRange(1, _MAX_STEPS), default=5, show_default=True, help="Optimizer steps to profile."
)
@click.option("--timeout", "timeout_s", callback=seconds, default="60s", show_default=True, help="How long to wait.")
@click.option(
    "-o", "--output", type=FILE, help="The file to write (default: RUN.profile.json); FILE.zip as in `trace`."
)
def profile_command(name: str | None, run: str | None, steps: int, timeout_s: float, output: Path | None) -> None:
    """Profile the same steps on all ranks of RUN with torch.profiler, and write them into the trace of the run."""
    from compose_sim.view.profiles import take_profiles

    folder = _running(name or run)
    taken = take_profiles(folder, steps=steps, timeout_s=timeout_s)
    ranks = ", ".join(str(profile.rank) for profile in sorted(taken.profiles, key=lambda each: each.rank))
    say(f"steps {taken.first} to {taken.first + steps - 1} of rank {ranks}")
    for rank, why in sorted(taken.missing.items()):
        say(f"rank {rank}: no profile: {why}")
    say(_write_trace(output or Path(f"{folder.name}.profile.json"), folder, taken.profiles))


@click.command("dump")
@click.argument("name", required=False, metavar="[RUN]")
@run_option
@click.option("--timeout", "timeout_s", callback=seconds, default="20s", show_default=True, help="How long to wait.")
@click.option(
    "-o", "--output", type=FOLDER, metavar="FOLDER", help="Where the dumps of all ranks go (default: RUN.flight)."
)
@json_option
def dump_command(name: str | None, run: str | None, timeout_s: float, output: Path | None, as_json: bool) -> None:
    """Show the stack of each rank of RUN and its pending collectives, and dump torch's flight recorder.

    The run goes on. The dumps are in torch's format.
    """
    from compose_sim.view.profiles import dump_ranks, gather_dumps

    folder = _running(name or run)
    found = dict(sorted(dump_ranks(folder, timeout_s=timeout_s).items()))
    target = output or Path(f"{folder.name}.flight")
    left_out = gather_dumps(folder, target)
    if as_json:
        ranks = [{"rank": rank, "node": event.node, **event.data} for rank, event in found.items()]
        print_json({"schema_version": 1, "folder": str(target), "left_out": left_out, "ranks": ranks})
        return
    for rank, event in found.items():
        _print_rank(rank, event)
    for file, why in left_out.items():
        say(f"{file} is left out: {why}")
    say(f"compare the collectives of the ranks: python -m torch.distributed.flight_recorder.fr_trace {target}")


def _print_rank(rank: int, event: Event) -> None:
    data = event.data
    doing = "holds the interpreter's lock in C code" if data.get("locked_in_c") else data.get("doing") or "running"
    echo(f"rank {rank} on {event.node}: {doing}, {data.get('steps', 0)} steps")
    for file, line, function in data.get("frames") or ():
        echo(f"  {file}:{line} in {function}")
    for each in data.get("pending") or ():
        echo(f"  pending: {each.get('op')} #{each.get('number')} of {each.get('sizes')}, group {each.get('group')}")


def _write_trace(path: Path, folder: RunFolder, profiles: Iterable[Profile] = ()) -> str:
    """Write the trace, as a ZIP if the file is named so, and return how to open it."""
    import io
    import json
    import zipfile

    from compose_sim.core.view.trace import chrome_trace, perfetto_files
    from compose_sim.engine.run_folder.safe_files import write_file
    from compose_sim.view.reader import PageReader

    reader = PageReader(folder)
    try:
        message = reader.read()
    finally:
        reader.close()
    trace = chrome_trace(message, reader.sent, profiles)
    if path.suffix != ".zip":
        write_file(path, json.dumps(trace, ensure_ascii=False, separators=(",", ":")))
        return f"{len(message['spans'])} spans: open {path} at https://ui.perfetto.dev, which keeps it on this machine"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in perfetto_files(trace).items():
            archive.writestr(name, text)
    write_file(path, target.getvalue())
    return f"{len(message['spans'])} spans: open {path} in Perfetto 58 or newer, such as https://ui.perfetto.dev"


def _running(named: str | None) -> RunFolder:
    """Return the folder of a run by name, which must be running, or by path."""
    from compose_sim.cli.commands.interventions import running_folder

    return named_folder(named) if named and "/" in named else running_folder(named)
