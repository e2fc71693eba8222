"""Run a cell of a notebook on several ranks, and show their outputs side by side: `%load_ext composesim`, then `%%ranks 4`."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from html import escape
from typing import Any

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import read_request, script_of
from compose_sim.app.session import Session
from compose_sim.core.report.report import Report
from compose_sim.core.text import CELL
from compose_sim.engine.run_folder.record import read_events, read_logs
from compose_sim.errors import SpecError

_USAGE = "%%ranks 4, %%ranks 4 --nodes 2 or %%ranks 4 --engine docker"
_PATIENCE_S = 15.0  # with ranks that do not move: whoever waits for a cell sees nothing meanwhile
_STYLE = "text-align:left;vertical-align:top;border-left:1px solid #bbb;padding:0 .8em"


@dataclass(frozen=True)
class RankOutputs:
    """What each rank of a cell printed, and how the run ended. A notebook shows it as a table with a column for each rank."""

    lines: dict[int, tuple[str, ...]]
    report: Report

    @property
    def failure(self) -> str:
        """Why the run did not pass; "" if it did."""
        cause = self.report.cause
        return (
            f"{self.report.verdict}: {cause.text.strip() if cause else ''}" if self.report.verdict != "passed" else ""
        )

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="{_STYLE}">rank {rank}</th>' for rank in self.lines)
        cells = "".join(
            f'<td style="{_STYLE}"><pre>{escape(chr(10).join(lines))}</pre></td>' for lines in self.lines.values()
        )
        failure = f"<pre>{escape(self.failure)}</pre>" if self.failure else ""
        return f"<table><tr>{head}</tr><tr>{cells}</tr></table>{failure}"

    def __repr__(self) -> str:
        text = "\n".join(f"rank {rank} | {line}" for rank, lines in self.lines.items() for line in lines)
        return "\n".join(filter(None, (text, self.failure)))


def ranks(line: str, cell: str) -> RankOutputs:
    """
    Run the text of a cell as a script on some ranks, and return what they printed.

    `line` is `RANKS [--nodes N] [--engine local|docker]`; the default is one node on the local engine. The ranks are processes
    of their own:
    they see no variable of the notebook. Raises SpecError if the line is wrong.
    """
    number, nodes, engine = _arguments(line)
    script = script_of(cell.encode(), CELL)
    try:
        values = {"script": str(script), "nodes": nodes, "nproc_per_node": number // nodes, "engine": engine}
        request = read_request(values)
        if "hang_timeout" not in request.spec.model_fields_set:
            request = request.with_spec(hang_timeout=_PATIENCE_S)
        session = Session(request)
        report = session.run(QuietListener())
    finally:
        shutil.rmtree(script.parent, ignore_errors=True)
    if session.was_interrupted:
        raise KeyboardInterrupt
    folder = session.folder.path
    logs = read_logs(folder, read_events(folder))
    return RankOutputs({rank: logs.get(rank, ()) for rank in range(number)}, report)


def register(shell: Any) -> None:
    """Add `%%ranks` to an IPython shell, which prints a UsageError without a traceback."""
    from IPython.core.error import UsageError

    def magic(line: str, cell: str) -> RankOutputs:
        try:
            return ranks(line, cell)
        except SpecError as error:
            raise UsageError(f"{error.message}. Try: {error.hint}") from None

    shell.register_magic_function(magic, magic_kind="cell", magic_name="ranks")


def _arguments(line: str) -> tuple[int, int, str]:
    words = shlex.split(line)
    options = dict(zip(words[1::2], words[2::2], strict=False))
    values = (words[0] if words else "", options.get("--nodes", "1"))
    if len(words) % 2 == 0 or set(options) - {"--nodes", "--engine"} or not all(each.isdecimal() for each in values):
        raise SpecError(f"'%%ranks {line}' is not understood", hint=_USAGE)
    number, nodes = map(int, values)
    if not nodes or not number or number % nodes:
        raise SpecError(f"{number} ranks cannot be shared by {nodes} nodes", hint=_USAGE)
    return number, nodes, options.get("--engine", "local")
