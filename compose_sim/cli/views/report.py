"""Print a report: nodes, timings, metrics, versions, checks, links of services, the cause, and the verdict last."""

from __future__ import annotations

import platform
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from compose_sim.cli.console import MARKS, echo, print_table, screen_width, show, verdict_line
from compose_sim.cli.views.faults import history_lines
from compose_sim.core.checks.mistakes import summary
from compose_sim.core.doctor.gpu_messages import explain
from compose_sim.core.json_values import to_json
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.bottleneck import straggler_line
from compose_sim.core.report.report import (
    Cause,
    CheckResult,
    ExpectationResult,
    MistakeReport,
    NodeReport,
    Place,
    Report,
    Timings,
    link,
    login,
    published_services,
    tunnel,
)
from compose_sim.core.report.tracebacks import folded
from compose_sim.core.text import format_bytes, format_count, format_seconds
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import SpecError

if TYPE_CHECKING:
    from compose_sim.core.events.events import Event

_WIDTH = 118
_LONGEST_SOURCE = 100
_HANG = 4  # of the lines of a verdict after the first
_MARKS = {**MARKS, "inconclusive": ("?", "yellow")}
_LONGEST_DETAIL = 160


def print_checks(results: Sequence[CheckResult], *, err: bool = False) -> None:
    """Print the results in the given order."""
    width = max((len(result.id) for result in results), default=0)
    for result in results:
        for line in result_lines(result, width):
            show(line, hang=width + 4, err=err)


def result_lines(result: CheckResult, width: int) -> Iterable[str]:
    """Yield `✘ set-epoch  ranks read the same order in epochs 0 and 1`, and what to do about it."""
    mark, color = MARKS[result.status]
    dim = result.status == "not-applicable"
    detail = f"not applicable: {result.detail}" if dim else result.detail
    head = click.style(f"{mark} {result.id:<{width}}", fg=color, bold=not dim, dim=dim)
    yield head + click.style(f"  {' '.join(detail.split())}", dim=dim)
    if not result.is_problem:
        return
    if result.follows:
        yield from _labeled("follows from", result.follows)
    elif result.fix:
        yield from _labeled("fix", result.fix)
    if result.place:
        yield from _labeled("at", f"{relative(Path(result.place.file), Path.cwd())}:{result.place.line}")
        yield from _source_lines(result.place)
    yield from _labeled("page", f"composesim check --explain {result.id}")


def relative(file: Path, folder: Path) -> str:
    """Return a path relative to a folder if the file is below it."""
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)


def _labeled(label: str, text: str) -> Iterable[str]:
    first = f"    {label}: "
    width = min(_WIDTH, screen_width() or _WIDTH)
    # Wrap only at spaces, so that a path or a call in a fix can be copied whole.
    for line in textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    ):
        yield click.style(line[: len(first)], dim=True) + line[len(first) :]


def _source_lines(place: Place) -> Iterable[str]:
    """Yield the line of code that a place names, and a line that underlines it, if the file is in the current folder."""
    from compose_sim.view.reader import read_source

    lines = read_source(place.file, str(Path.cwd())) or []
    text = lines[place.line - 1].strip() if place.line and place.line <= len(lines) else ""
    if text:
        text = text if len(text) <= _LONGEST_SOURCE else f"{text[: _LONGEST_SOURCE - 1]}…"
        yield f"        {text}"
        yield click.style(f"        {'^' * len(text)}", dim=True)


def print_mistakes(mistakes: Sequence[MistakeReport]) -> None:
    """Print what the checks said of each planted mistake, or nothing without `--self-test`."""
    if not mistakes:
        return
    echo()
    width = max(len(each.text) for each in mistakes)
    for each in mistakes:
        mark, color = MARKS[{"found": "passed", "missed": "failed", "not-planted": "not-applicable"}[each.status]]
        what = (
            f"found by {', '.join(each.checks) or each.why}" if each.status == "found" else f"{each.status}: {each.why}"
        )
        show(f"{click.style(mark, fg=color)} {each.text:<{width}}  {what}")
    show(summary(tuple(mistakes)))


def print_expectations(results: Sequence[ExpectationResult], *, err: bool = False) -> None:
    """Print a blank line and the expectations, or nothing if there are none."""
    if not results:
        return
    echo(err=err)
    width = max(len(f"{result.id} {result.wanted}") for result in results)
    for result in results:
        mark, color = _MARKS[result.status]
        wanted = f"{result.id} {result.wanted}".ljust(width)
        detail = result.detail
        if len(detail) > _LONGEST_DETAIL:
            detail = detail[: _LONGEST_DETAIL - 1] + "…"
        show(f"{click.style(mark, fg=color, bold=True)} {wanted}  {detail}", hang=4, err=err)


_MANY_NODES, _MAX_NODES = 8, 16  # more nodes share rows; so many rows are printed
_MAX_METRICS = 6
_MAX_HINTS = 3
_LONGEST_CAUSE = 240  # characters; the sentence about a hang, with its source line, fits
_MAX_TRACEBACK_LINES = 30
_FIRST_METRICS = ("loss", "accuracy")
_LAST_METRICS = ("epoch", "step")
_VERSIONS = ("torch", "paddle", "cuda", "cudnn", "nccl", "driver", "python", "engine", "host")
_UNKNOWN = "–"


def print_report(report: Report, *, err: bool = False, skip: Sequence[str] = ()) -> None:
    """Print a report on stdout or stderr. Of the checks only problems are printed, except those in `skip`."""
    echo(err=err)
    _print_nodes(report.nodes, err=err)
    echo(err=err)
    timeline, bottleneck = report.timeline, report.bottleneck
    for name, parts in (
        ("timings", timing_parts(report.timings)),
        ("metrics", metric_parts(report.metrics)),
        ("timeline", [timeline.summary, timeline.file] if timeline else []),
        # A guess, and therefore not part of what `up` prints.
        ("limited", [f"most likely by {bottleneck.what}: {bottleneck.why}"] if bottleneck and not err else []),
        ("ran on", _version_parts(report)),
        ("slowest", [line] if (line := straggler_line(report.rank_times)) else []),
        *(("note", [note]) for note in report.notes),
        *((label, [line]) for label, line in history_lines(report)),
    ):
        if parts:
            show(click.style(f"{name:<9}", dim=True) + " · ".join(parts), hang=9, err=err)
    problems = [result for result in results_beside_cause(report) if result.is_problem and result.id not in skip]
    if problems:
        echo(err=err)
        print_checks(problems, err=err)
    print_expectations(report.expectations, err=err)
    print_cause(report, err=err)
    echo(err=err)
    show(look_line(report), hang=9, err=err)
    show(final_line(report, skip=skip), hang=_HANG, err=err)


def print_judgement(report: Report, *, verbose: bool, seconds: float | None = None) -> None:
    """Print what `check` found: the checks without a problem in one line unless `verbose`, warnings, failures, and the verdict."""
    results = results_beside_cause(report)
    problems = sorted((each for each in results if each.is_problem), key=lambda each: each.status == "failed")
    quiet = [each.status for each in results if not each.is_problem]
    echo()
    if verbose or len(results) == 1:
        print_checks(results)
    else:
        counts = ", ".join(f"{quiet.count(each)} {each.replace('-', ' ')}" for each in dict.fromkeys(quiet))
        if counts:
            show(click.style(f"{'checks':<9}", dim=True) + f"{counts} (-v lists them)", hang=9)
        print_checks(problems)
    print_cause(report)
    print_mistakes(report.mistakes)
    for note in report.notes:
        show(click.style(f"{'note':<9}", dim=True) + note, hang=9)
    echo()
    show(look_line(report), hang=9)
    show(check_verdict(report, seconds=seconds), hang=_HANG)


def look_line(report: Report, *more: str) -> str:
    """Return where to look further."""
    rank = f" --rank {report.cause.rank}" if report.cause and report.cause.rank is not None else ""
    places = (f"composesim view {report.run}", f"composesim logs --run {report.run}{rank}", *more)
    return click.style("look     ", dim=True) + " · ".join(places)


def results_beside_cause(report: Report) -> list[CheckResult]:
    """Return the results of all checks. One that found the cause of the run does not repeat it: the last line has it."""
    cause = report.cause.message if report.cause else None
    return [replace(each, detail="see the last line") if each.detail == cause else each for each in report.checks]


def print_cause(report: Report, *, err: bool = False) -> None:
    """Print the evidence for the cause, lines of the script that may explain it, and a hint if it is a known error of GPUs."""
    cause = report.cause
    if not cause:
        return
    if cause.traceback and (evidence := _without_cause(folded(cause.traceback), cause)):
        echo(err=err)
        width = screen_width(err=err)
        lines = _shortened(evidence).split("\n")
        # Below a line that is wrapped, the marks of Python point to nothing.
        kept = [line for line in lines if not width or len(line) <= width or line.strip(" ~^")]
        show("\n".join(kept), err=err)
    for hint in report.hints[:_MAX_HINTS] if report.needs_hints else ():
        show(click.style(f"{'note':<9}", dim=True) + str(hint), hang=9, err=err)
    explanation = explain(cause.text)
    if explanation:
        show(explanation, err=err)


def _without_cause(traceback: str, cause: Cause) -> str:
    """Return the evidence without a last line that is the cause: the last line of the report is that too."""
    above, _, last = traceback.rstrip().rpartition("\n")
    return above if last == cause.message and len(last) <= _LONGEST_CAUSE else traceback


def final_line(report: Report, *, skip: Sequence[str] = ()) -> str:
    """
    Return `✔ passed  4 nodes, 4 ranks of train.py in 6.8 s`, or the cause on one line.

    `up` exits with the code of the run, so a failed check leaves it `passed`; the line says both.
    """
    if report.cause:
        return verdict_line(report.verdict, cause_line(report.cause))
    parts = [format_count(len(report.nodes), "node"), f"{_ranks(report)} of {report.program}{_duration(report)}"]
    if report.restarts:
        parts.append(f"after {format_count(report.restarts, 'restart')}")
    if report.faults:
        parts.append(f"{format_count(len(report.faults), 'fault')} injected")
    failed = [each.id for each in report.checks if each.status == "failed" and not (each.follows or each.id in skip)]
    if failed and report.verdict == "passed":
        return verdict_line(f"passed, but {', '.join(failed)} failed", ", ".join(parts), status="warned")
    return verdict_line(report.verdict, ", ".join(parts))


def _ranks(report: Report) -> str:
    """Return `4 ranks`, or `2 to 4 ranks` if rounds had different sizes."""
    sizes = [each.world_size for each in report.rounds] or [report.world_size]
    return format_count(sizes[0], "rank") if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)} ranks"


def _duration(report: Report) -> str:
    total, output = report.timings.total_s, report.timings.output_s
    shown = f", and {format_seconds(output)} to show the output" if output else ""
    return "" if total is None else f" in {format_seconds(total)}{shown}"


def check_verdict(report: Report, *, seconds: float | None = None) -> str:
    """Return the last line of `check`, with the seconds of the whole command, if they are given, and not of the run alone."""
    if seconds is not None:
        report = replace(report, timings=replace(report.timings, total_s=seconds))
    word = report.verdict if report.verdict != "passed" or not report.check_exit_code else "failed"
    warned = [each.id for each in report.checks if each.status == "warned"]
    but = [f"but {', '.join(warned)} warned"] if warned else []
    but += [text] if (text := unjudged_text(report)) else []
    if word == "passed" and but:
        return verdict_line(f"passed, {', '.join(but)}", verdict_text(report), status="warned")
    return verdict_line(word, verdict_text(report))


def unjudged_text(report: Report) -> str:
    """Return what the checks could not compare, if nothing failed; several reasons are those of the checks above."""
    if not report.coverage or report.verdict != "passed":
        return ""
    missing = report.coverage.missing
    several = len(set(missing.values())) > 1
    return f"not judged: {', '.join(missing)}" if several else report.coverage.text


def verdict_text(report: Report) -> str:
    """Return what failed and how many checks passed; if the run itself did not pass, the cause."""
    failed = ", ".join(result.id for result in report.checks if result.status == "failed" and not result.follows)
    consequences = ", ".join(result.id for result in report.checks if result.status == "failed" and result.follows)
    failed += f" (consequence: {consequences})" if consequences else ""
    if report.run_failed:
        why = cause_line(report.cause) if report.cause else report.program
        return f"{why}; {failed} failed" if failed else why
    statuses = [result.status for result in report.checks]
    counts = ", ".join(
        f"{statuses.count(status)} {status.replace('-', ' ')}"
        for status in ("passed", "failed", "warned", "not-applicable")
        if status in statuses
    )
    alone = [each.detail for each in report.checks if each.id == "matches-single" and each.status == "not-applicable"]
    ran = f"not compared with one rank ({alone[0]}); " if alone and report.verdict == "passed" else ""
    ran += f"{format_count(report.world_size, 'rank')} of {report.program}{_duration(report)}"
    if report.cause and report.cause.kind == "coverage":
        return f"{report.cause.message}; {counts}; {ran}"
    return f"{failed}: {counts}; {ran}" if failed else f"{counts or 'no check was selected'}; {ran}"


def cause_line(cause: Cause) -> str:
    """Return where it happened and what, on one line: `rank 1 on node-1: ValueError: boom`."""
    message = cause.first_line
    if len(message) > _LONGEST_CAUSE:
        message = message[: _LONGEST_CAUSE - 1] + "…"
    file = PurePath(cause.place.file).name if cause.place else ""
    if cause.place and f"{file}, line " not in message:
        message += f" ({file}, line {cause.place.line})"
    rank = "" if cause.rank is None else f"rank {cause.rank}"
    node = cause.node or ""
    # Most messages of composesim itself begin with the rank or the node, and some name both.
    if all(name in message for name in (rank and f"{rank} ", node)):
        return message
    if rank and ": " in message and message.startswith(f"{rank} "):  # what follows the colon may be long
        return f"{rank} on {node}{message.removeprefix(rank)}"
    if message.startswith(tuple(f"{name} " for name in (rank, node) if name)):
        return message if node in message else f"{message} ({node})"
    return f"{' on '.join(name for name in (rank, node) if name)}: {message}"


def timing_parts(timings: Timings) -> list[str]:
    """Return `first step 2.91 s`, … for each milestone that was reached."""
    named = (
        ("nodes up", timings.create_s),
        ("rendezvous", timings.rendezvous_s),
        ("ready", timings.ready_s),
        ("first step", timings.first_step_s),
        ("total", timings.total_s),
    )
    return [f"{name} {format_seconds(seconds)}" for name, seconds in named if seconds is not None]


def metric_parts(metrics: Mapping[str, Any]) -> list[str]:
    """Return `loss 0.0312`, `accuracy 0.981`, …: loss and accuracy first, the step last."""
    names = [name for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    first = [name for key in _FIRST_METRICS for name in names if key in name.lower()]
    last = [name for name in _LAST_METRICS if name in names]
    others = [name for name in names if name not in first and name not in last]
    chosen = [*dict.fromkeys(first), *others][: _MAX_METRICS - len(last)] + last
    return [
        f"{name} {metrics[name]:.4g}" if isinstance(metrics[name], float) else f"{name} {metrics[name]}"
        for name in chosen
    ]


def _version_parts(report: Report) -> list[str]:
    """Return `torch 2.13.0`, `Docker Engine 26.1.5`, `gloo`, …."""
    versions = {name: report.versions[name] for name in _VERSIONS if report.versions.get(name)}
    if report.torch_range in ("older", "newer") and "torch" in versions:
        versions["torch"] = f"{versions['torch']} ({report.torch_range} than the tested range)"
    parts = [str(value) if name == "engine" else f"{name} {value}" for name, value in versions.items()]
    parts.append(report.backend)
    if report.engine == "docker" and report.image:
        digest = str(report.versions.get("image_digest") or "").removeprefix("sha256:")[:12]
        parts.append(f"image {report.image}" + (f" ({digest})" if digest else ""))
    return parts


def _print_nodes(nodes: Sequence[NodeReport], *, err: bool) -> None:
    """Print a row for each node; of many, those that ended like most others share one."""
    groups = [[node] for node in nodes]
    if len(nodes) > _MANY_NODES:
        (ending, _), *_ = Counter(map(_ending, nodes)).most_common(1)
        alike = [node for node in nodes if _ending(node) == ending]
        groups = [*([node] for node in nodes if _ending(node) != ending), alike]
    header = ("node", "ranks", "exit", "steps", "cpu", "peak memory", "received", "sent")
    rows = [_row(group) for group in groups[-_MAX_NODES:]]
    used = [column for column in range(len(header)) if column < 4 or any(row[column] != _UNKNOWN for row in rows)]
    print_table([header[column] for column in used], [[row[column] for column in used] for row in rows], err=err)
    if len(groups) > len(rows):
        echo(f"and {len(groups) - len(rows)} more: add --json", err=err)


def _ending(node: NodeReport) -> tuple[int | None, int, int]:
    return node.exit_code, node.steps, len(node.ranks)


def _row(group: Sequence[NodeReport]) -> list[Any]:
    """Return the row of a node, or of several that ended alike, with the least and the most that they used."""
    first = group[0]
    name = first.name if len(group) == 1 else f"{len(group)} nodes"
    seconds = [node.cpu_seconds for node in group if node.cpu_seconds is not None]
    sizes = ("peak_memory_bytes", "received_bytes", "sent_bytes")
    return [
        name,
        ranges(rank for node in group for rank in node.ranks),
        _UNKNOWN if first.exit_code is None else first.exit_code,
        first.steps,
        _span(seconds, format_seconds),
        *(_span([size for node in group if (size := getattr(node, each)) is not None], format_bytes) for each in sizes),
    ]


def _span(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return `430 MiB`, or `430 MiB to 1.2 GiB` if values differ."""
    ends = list(dict.fromkeys((shown(min(values)), shown(max(values))))) if values else [_UNKNOWN]
    return " to ".join(ends)


def ranges(numbers: Iterable[int]) -> str:
    """Return `0-3, 6` for 0, 1, 2, 3, 6."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _shortened(traceback: str) -> str:
    lines = traceback.rstrip().splitlines()
    left_out = len(lines) - _MAX_TRACEBACK_LINES
    if left_out > 0:
        lines = [f"… {format_count(left_out, 'line')} above", *lines[-_MAX_TRACEBACK_LINES:]]
    return "\n".join(f"  {line}" for line in lines)


def link_lines(plan: Plan, *, token: str) -> list[str]:
    """Return two lines for each service. They contain the token of the run: print them on a terminal, never to a file."""
    width = max((len(port.name) for port in plan.published), default=0)
    lines = []
    for port in plan.published:
        credentials = login(port, token=token)
        lines.append(f"  {port.name:<{width}}  {link(port, token=token)}{f'  ({credentials})' if credentials else ''}")
        command = tunnel(port, user=plan.login, host=platform.node())
        lines.append(f"  {'':<{width}}  from another machine: {command}")
    return lines


def links_of(folder: RunFolder) -> list[str]:
    """Return the lines for the services of a run, or none if the plan cannot be read."""
    try:
        plan = folder.read_plan()
    except SpecError:
        return []
    return link_lines(plan, token=folder.read_token()) if plan.published else []


def published_by(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the services that a run publishes as JSON values, without the token."""
    try:
        services = published_services(folder.read_plan(), host=platform.node())
    except SpecError:
        return []
    return [to_json(service) for service in services]


def service_line(event: Event) -> str:
    """Return that a service has exited (the run continues without it), and the last line of its output."""
    code, output = event.data.get("exit_code"), str(event.data.get("words") or "").strip().splitlines()
    return f"the service {event.data.get('name')} exited with status {code}" + (
        f"; its last line: {output[-1]}" if output else ""
    )
