"""Find and run the command `composesim VERB`, and print every error in one place."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from compose_sim.cli.console import echo, show
from compose_sim.cli.spelling import no_such_verb, normalize, with_suggestion
from compose_sim.engine.project_owner import TRUST
from compose_sim.errors import ComposesimError, EnvironmentMissingError, SpecError, missing_dependency, resource_errors
from compose_sim.plugins.registry import Feature, built_in, find
from compose_sim.version import __version__

# Numbers of errors that are due to a path that the user named, or to its rights
_UNUSABLE = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
COMMANDS = "composesim.commands"
# Verb -> its line in `--help`. A verb's module is imported only when it runs, so that `--help` is fast.
_OWN_VERBS = {
    "up": "Run a script on a cluster of nodes, and exit with a verdict.",
    "check": "Find mistakes in the distributed code of a script.",
    "play": "Play a scenario of faults in a run, and check its expectations.",
    "rerun": "Run the command of an earlier run again.",
    "plan": "Show what `up` would run, and why.",
    "render": "Write a folder that runs with plain `docker compose up`.",
    "wait": "Wait for a run to finish, and exit with its exit code.",
    "ps": "List runs and their nodes.",
    "logs": "Show what the ranks printed.",
    "report": "Show the report of a run.",
    "view": "Show a run as a page in the browser, live or finished.",
    "stats": "Show CPU, memory and network of each node.",
    "top": "Show what each rank does, as lanes in the terminal.",
    "trace": "Write the timeline of a run for Perfetto.",
    "profile": "Profile some steps on all ranks of a run.",
    "dump": "Show the stack and the pending collectives of each rank.",
    "exec": "Run a command inside a node, or all nodes.",
    "attach": "Attach to the debugger of a rank that waits at breakpoint().",
    "fault": "Inject a fault into a run (see `fault list`).",
    "heal": "Undo faults.",
    "link": "Change the bandwidth, delay and loss of links during a run.",
    "scale": "Change the number of nodes in an elastic run.",
    "down": "End a run and remove its nodes.",
    "prune": "Remove what crashed runs left behind.",
    "doctor": "Check this machine, and print how to fix it.",
    "init": "Write a composesim.yaml and a small DDP script.",
    "image": "Build the image that nodes run.",
    "bench": "Measure shaped links, or nodes that share GPUs.",
    "explain": "Explain a term, with a drawing.",
    "completion": "Print the shell completion script for bash, zsh or fish.",
    "help": "Show the help of a verb.",
}
_GROUPS = {
    "up": "Run",
    "ps": "Look",
    "fault": "Break",
    "down": "Clean up",
    "doctor": "Set up and learn",
}  # by first verb
# Modules of several verbs, where each command is a function `VERB_command`. The others are `command` in `cmd_VERB.py`.
_MODULES = {
    "following": ("logs", "stats", "wait"),
    "inspection": ("report", "view", "trace", "profile", "dump"),
    "interventions": ("heal", "link", "scale"),
    "machine": ("doctor", "bench", "image"),
    "node_access": ("exec", "attach"),
    "removal": ("down", "prune"),
    "shell": ("completion", "help"),
}


def _all_verbs() -> dict[str, str]:
    """Return our own verbs, each followed by those of plug-ins that belong there."""
    found: dict[str, str] = {}
    for own, line in _OWN_VERBS.items():
        found |= {own: line, **{name: each.summary for name, each in built_in(COMMANDS).items() if each.after == own}}
    return found


VERBS = _all_verbs()


class Verbs(click.Group):
    """Verbs by name, from `cli/commands/`."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the words before the verb; this prints `--help`."""
        with _exit_without_reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        with _exit_without_reader():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs, in the order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command."""
        module = next((name for name, verbs in _MODULES.items() if cmd_name in verbs), "")
        place = f"{module}:{cmd_name}_command" if module else f"cmd_{cmd_name}:command"
        own = Feature(group=COMMANDS, name=cmd_name, value=f"compose_sim.cli.commands.{place}", is_built_in=True)
        verb = own if cmd_name in _OWN_VERBS else find(COMMANDS, cmd_name)
        if verb is None:
            return None
        with _no_pydantic_plugins():
            command: click.Command = verb.load()
        gc.freeze()  # modules stay; __main__ disabled collection while they load
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb; suggest the nearest one if there is none of that name."""
        if args[0] not in VERBS and not args[0].startswith("-") and not find(COMMANDS, args[0]):
            raise no_such_verb(args[0], VERBS, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs in groups for `--help`, without importing them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        title = ""
        for verb, line in VERBS.items():
            title = _GROUPS.get(verb, title)
            groups.setdefault(title, []).append((verb, line))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


_HELP = """Turn this machine into an N-node PyTorch training cluster.

\b
composesim up --nodes 4 train.py      four nodes, one rank each
composesim up --nodes 2 --nproc-per-node 2 train.py --epochs 3
"""


@click.command(
    cls=Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": normalize}
)
@click.version_option(__version__, prog_name="composesim")
@click.option(
    "--runs-dir",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Keep runs in DIR/.composesim instead of the project; COMPOSESIM_RUNS sets the same.",
)
@click.option(
    "--trust-project",
    is_flag=True,
    help="As root, let a project of another user do all that root can; COMPOSESIM_TRUST_PROJECT=1 sets the same.",
)
def group(runs_dir: str | None, trust_project: bool) -> None:
    """Collect all verbs; the help text is in _HELP."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise SpecError("the current folder has been deleted", hint="cd") from None
    if runs_dir is not None:
        os.environ["COMPOSESIM_RUNS"] = os.path.abspath(runs_dir)
    if trust_project:
        os.environ[TRUST] = "1"


def main() -> None:
    """Run the `composesim` command. Every error becomes a message and an exit code here, and nowhere else."""
    try:
        with resource_errors():
            group.main(prog_name="composesim", standalone_mode=False)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except (click.Abort, KeyboardInterrupt):
        echo("Interrupted.", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        clearer = with_suggestion(error)
        _exit_with(SpecError(clearer.format_message()), _usage_text(clearer))
    except ComposesimError as error:
        _exit_with(error)
    except Exception as error:  # noqa: BLE001 - the one place that reports a bug of ours
        if isinstance(error, ModuleNotFoundError) and (missing := missing_dependency(error)):
            _exit_with(missing)
        if isinstance(error, OSError) and error.errno in _UNUSABLE:
            message, hint = f"{error.strerror}: '{error.filename}'", f"ls -ld {error.filename}"
            _exit_with(EnvironmentMissingError(message, hint=hint))
        bug = ComposesimError("bug in composesim", evidence=traceback.format_exc())
        bug.exit_code = 70
        text = f"This is a bug in composesim {__version__}:\n{bug.evidence}"
        _exit_with(bug, text + "Try: report it with the traceback above")


def _exit_with(error: ComposesimError, text: str = "") -> NoReturn:
    """Print an error on stderr, as `text` if there is one, or on stdout as JSON if the user asked for JSON, and exit."""
    try:
        as_json = _wants_json()
        if as_json:
            echo(json.dumps({"schema_version": 1, "error": error.to_dict()}))
    except OSError:  # stdout is a file on a full disk
        as_json = False
        _discard_output()
    if not as_json:
        evidence = "\n".join(f"  {line}" for line in error.evidence.splitlines())
        parts = [f"Error: {error.message}", evidence, f"Try: {error.hint}" if error.hint else ""]
        show(text or "\n".join(filter(None, parts)), err=True)
    sys.exit(error.exit_code)


@contextlib.contextmanager
def _no_pydantic_plugins() -> Iterator[None]:
    """Define models without pydantic's plugins: it would read the metadata of every installed package, and import them."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:  # ranks get the user's choice
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _exit_without_reader() -> Iterator[None]:
    """Exit with the code of a command that SIGPIPE ends, if the reader of stdout has gone; Click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        sys.exit(141)


def _discard_output() -> None:
    """Drop what stdout has buffered: flushing it at exit must not raise another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wants_json() -> bool:
    """Return whether --json is among our own arguments, not among the script's."""
    verb, words = sys.argv[1:2], sys.argv[2:]
    own = words[: words.index("--")] if "--" in words else words
    command = None
    if verb and not verb[0].startswith("-"):
        with contextlib.suppress(Exception):  # the import may be the error that is to be printed
            command = group.get_command(click.Context(group), verb[0])
    count = getattr(command, "count_options", None)
    return "--json" in (own[: count(own)] if count and verb[0] not in ("render", "play", "export") else own)


def _usage_text(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    usage = f"{context.get_usage()}\nTry: {context.command_path} --help\n\n" if context else ""
    return f"{usage}Error: {error.format_message()}"
