"""How does a report read? A table of nodes, one line each of timings, metrics and versions, the cause, and the verdict last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from compose_sim.cli.console import print_table, verdict_line
from compose_sim.cli.views.checks import print_checks
from compose_sim.cli.views.expectations import print_expectations
from compose_sim.cli.views.faults import history_words
from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.selection import check_exit_code, complaints, failed_by_itself
from compose_sim.core.doctor.gpu_errors import explain
from compose_sim.core.report.horovod_timeline import trace_words
from compose_sim.core.units import format_bytes, format_seconds

_MOST_NODES = 16
_MOST_METRICS = 6
_MOST_TRACEBACK_LINES = 30
_TIMINGS = {
    "create_s": "nodes up",
    "rendezvous_s": "rendezvous",
    "ready_s": "ready",
    "first_step_s": "first step",
    "total_s": "total",
}
_FIRST_METRICS = ("loss", "accuracy")
_LAST_METRICS = ("epoch", "step")
_VERSIONS = ("torch", "paddle", "cuda", "cudnn", "nccl", "driver", "python", "engine", "host")


def print_report(report: Mapping[str, Any], *, err: bool = False, skip: Sequence[str] = ()) -> None:
    """Write a report for a person, on stdout or stderr; of the checks only what is wrong, without those to `skip`."""
    click.echo(err=err)
    _print_nodes(report["nodes"], err=err)
    click.echo(err=err)
    for name, words in (
        ("timings", timings_words(report["timings"])),
        ("metrics", metrics_words(report["metrics"])),
        ("timeline", timeline_words(report)),
        ("limited", [] if err else bottleneck_words(report)),  # a guess: for those who ask
        ("ran on", versions_words(report)),
        *((label, [line]) for label, line in history_words(report)),
    ):
        if words:
            click.echo(click.style(f"{name:<9}", dim=True) + " · ".join(words), err=err)
    wrong = [result for result in complaints(report.get("checks", ())) if result["id"] not in skip]
    if wrong:
        click.echo(err=err)
        print_checks(wrong, err=err)
    print_expectations(report.get("expectations", ()), err=err)
    print_cause(report, err=err)
    click.echo(err=err)
    click.echo(final_line(report), err=err)


def print_cause(report: Mapping[str, Any], *, err: bool = False) -> None:
    """The traceback of what the run failed of, if it did; where it may have failed of a GPU that nobody asked for, that."""
    cause = report["cause"]
    if cause and cause["traceback"]:
        click.echo(err=err)
        click.echo(_traceback(cause["traceback"]), err=err)
        if _may_be_of_emulation(report):
            click.echo("CUDA is emulated on the CPU here. To show the script an honest CPU: --gpus none", err=err)
    if cause and (words := explain(f"{cause['message']}\n{cause['traceback'] or ''}")):
        click.echo(words, err=err)


def _may_be_of_emulation(report: Mapping[str, Any]) -> bool:
    """Whether GPUs were emulated unasked, and the error or its lines speak of devices."""
    unasked = any(
        (choice["what"], choice["value"]) == ("gpus", "emulated") and not choice["why"].endswith("asked for")
        for choice in report["choices"]
    )
    text = f"{report['cause']['message']}\n{report['cause']['traceback']}"
    return unasked and re.search(r"cuda|gpu|device|nccl", text, re.IGNORECASE) is not None


def final_line(report: Mapping[str, Any]) -> str:
    """`✔ passed  4 nodes, 4 ranks of train.py in 6.8 s`, or the cause in one line."""
    cause, total = report["cause"], report["timings"]["total_s"]
    if cause:
        return verdict_line(report["verdict"], cause_words(cause))
    ran = f"{_count(len(report['nodes']), 'node')}, {_ranks(report)} of {report['program']}"
    within = f" in {format_seconds(total)}" if total is not None else ""
    again = f", after {_count(report['restarts'], 'restart')}" if report.get("restarts") else ""
    faults = f", through {_count(len(report['faults']), 'fault')}" if report["faults"] else ""
    return verdict_line(report["verdict"], ran + within + again + faults)


def _ranks(report: Mapping[str, Any]) -> str:
    """`4 ranks`, or `2 to 4 ranks` where rounds had different sizes."""
    sizes = [each["world_size"] for each in report.get("rounds", ())] or [report["world_size"]]
    return _count(sizes[0], "rank") if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)} ranks"


def check_verdict(report: Mapping[str, Any]) -> str:
    """The last line."""
    word = report["verdict"] if failed_by_itself(report) or not check_exit_code(report) else "failed"
    return verdict_line(word, verdict_words(report))


def verdict_words(report: Mapping[str, Any]) -> str:
    """What failed and how much passed; where the run itself did not pass, its cause."""
    results, cause = report["checks"], report["cause"]
    counts = {
        status: sum(result["status"] == status for result in results)
        for status in (PASSED, FAILED, WARNED, NOT_APPLICABLE)
    }
    words = ", ".join(f"{count} {status.replace('-', ' ')}" for status, count in counts.items() if count)
    failed = ", ".join(result["id"] for result in results if result["status"] == FAILED)
    if failed_by_itself(report):
        why = cause_words(cause) if cause else report["program"]
        return f"{why}; {failed} failed" if failed else why
    total = report["timings"]["total_s"]
    ran = f"{_count(report['world_size'], 'rank')} of {report['program']}" + (
        f" in {format_seconds(total)}" if total else ""
    )
    return f"{failed}: {words}; {ran}" if failed else f"{words or 'no check was chosen'}; {ran}"


def cause_words(cause: Mapping[str, Any]) -> str:
    """Where it happened and what, on one line: `rank 1 on node-1: ValueError: boom`."""
    message = next(iter(str(cause["message"]).splitlines()), "")
    message = message if len(message) <= 160 else message[:159] + "…"
    place = " on ".join(
        part for part in (f"rank {cause['rank']}" if cause["rank"] is not None else "", cause["node"] or "") if part
    )
    # Most messages of our own begin with the rank or the node, and some name both.
    names = [part for part in (f"rank {cause['rank']} ", cause["node"] or "") if part.strip() != "rank None"]
    if all(name in message for name in names):
        return message
    spoken = any(message.startswith(part) for part in (f"rank {cause['rank']} ", f"{cause['node']} "))
    if spoken or not place:
        return f"{message} ({cause['node']})" if cause["node"] and cause["node"] not in message else message
    return f"{place}: {message}"


def timings_words(timings: Mapping[str, float | None]) -> list[str]:
    """`first step 2.91 s`, …: only what happened."""
    return [
        f"{words} {format_seconds(timings[key] or 0.0)}" for key, words in _TIMINGS.items() if timings[key] is not None
    ]


def metrics_words(metrics: Mapping[str, Any]) -> list[str]:
    """`loss 0.0312`, `accuracy 0.981`, …: loss and accuracy first, the step last."""
    names = [name for name, value in metrics.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    first = [name for key in _FIRST_METRICS for name in names if key in name.lower()]
    last = [name for name in _LAST_METRICS if name in names]
    others = [name for name in names if name not in first and name not in last]
    chosen = [*dict.fromkeys(first), *others][: _MOST_METRICS - len(last)] + last
    return [
        f"{name} {metrics[name]:.4g}" if isinstance(metrics[name], float) else f"{name} {metrics[name]}"
        for name in chosen
    ]


def bottleneck_words(report: Mapping[str, Any]) -> list[str]:
    """What the training was most likely limited by, and the numbers that speak for it."""
    found = report.get("bottleneck")
    return [f"most likely by {found['what']}: {found['why']}"] if found else []


def timeline_words(report: Mapping[str, Any]) -> list[str]:
    """What Horovod's timeline says of the ranks' time, and where it lies."""
    timeline = report.get("timeline")
    return [trace_words(timeline), timeline["file"]] if timeline else []


def versions_words(report: Mapping[str, Any]) -> list[str]:
    """`torch 2.13.0`, `gloo`, `Docker Engine 26.1.5`, …."""
    versions = report["versions"]
    words = []
    for name in _VERSIONS:
        value = versions.get(name)
        if value:
            words.append(str(value) if name in ("engine", "host") else f"{name} {value}")
    image = report["image"] if report["engine"] == "docker" else ""
    digest = str(versions.get("image_digest") or "").removeprefix("sha256:")[:12]
    return [*words, report["backend"], *([f"image {image}" + (f" ({digest})" if digest else "")] if image else [])]


def _print_nodes(nodes: list[Mapping[str, Any]], *, err: bool) -> None:
    shown = nodes
    if len(nodes) > _MOST_NODES:  # those that ended badly are the interesting ones
        shown = sorted(nodes, key=lambda node: node["exit_code"] == 0)[:_MOST_NODES]
        shown.sort(key=nodes.index)
    header = ("node", "ranks", "exit", "steps", "cpu", "peak memory", "received", "sent")
    rows = [_row(node) for node in shown]
    used = [column for column in range(len(header)) if column < 4 or any(row[column] != "–" for row in rows)]
    print_table([header[column] for column in used], [[row[column] for column in used] for row in rows], err=err)
    if len(nodes) > len(shown):
        click.echo(f"and {len(nodes) - len(shown)} more: add --json", err=err)


def _row(node: Mapping[str, Any]) -> list[Any]:
    seconds = node.get("cpu_seconds")
    sizes = [node.get(key) for key in ("peak_memory_bytes", "received_bytes", "sent_bytes")]
    return [
        node["name"],
        ranges(node["ranks"]),
        "–" if node["exit_code"] is None else node["exit_code"],
        node.get("steps", 0),
        "–" if seconds is None else format_seconds(seconds),
        *("–" if size is None else format_bytes(size) for size in sizes),
    ]


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 6` for 0, 1, 2, 3, 6."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _traceback(text: str) -> str:
    lines = text.rstrip().splitlines()
    left_out = len(lines) - _MOST_TRACEBACK_LINES
    if left_out > 0:
        lines = [f"… {left_out} lines above", *lines[-_MOST_TRACEBACK_LINES:]]
    return "\n".join(f"  {line}" for line in lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
