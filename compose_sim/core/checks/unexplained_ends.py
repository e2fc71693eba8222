"""Explain the end of a rank that raised no exception, by its last collective and lines, or that did not find a file of another rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from compose_sim.core.checks import Case, report_place, where
from compose_sim.core.report.missing import missing_file
from compose_sim.core.report.report import Cause
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.process_groups import Collective, DdpForward

_SILENT = ("exit", "signal")  # kinds of causes without a traceback
_NOISE = re.compile(r"\s*$|frame #\d|.{0,300}Warning: |Exception raised from |terminate called|\*\*\* ")
_COMPLAINT = re.compile(r"error|fatal|assert|fail|abort|what\(\):", re.IGNORECASE)
_PREFIX = re.compile(r"\[rank\d{1,9}\]: ?")
_MAX_LINES, _LONGEST_LINE, _LONGEST_QUOTE = 8, 400, 160


def with_evidence(case: Case) -> Cause | None:
    """Return the cause of a run, with evidence if it is a rank that exited or was killed without an exception."""
    cause = case.cause
    if cause is None or cause.kind not in _SILENT or cause.rank is None:
        return cause
    printed = _meaningful(case.logs.get(cause.rank, ()))
    printed = [line for line in printed if line.strip().removeprefix("what():").strip() not in cause.message]
    rank = case.observed.ranks.get(cause.rank)
    last = rank.last(Collective, DdpForward) if rank else None
    evidence = [f"The last lines of rank {cause.rank}:", *(f"  {line}" for line in printed)] if printed else []
    message, place, is_explained = cause.message, cause.place, ": " in cause.message
    if isinstance(last, (Collective, DdpForward)):
        call = last.op if isinstance(last, Collective) else "the forward pass of DistributedDataParallel"
        evidence.append(f"Its last collective: {call}{where(last.at)}")
        if cause.kind == "signal":
            message, place = (
                f"{message}{',' if is_explained else ''} after {call}{where(last.at)}",
                report_place(last.at),
            )
    quote = _quote(printed) if cause.kind == "signal" and not is_explained else ""
    if quote:
        message += f": {quote}"
    return replace(cause, message=message, place=place, traceback="\n".join(evidence) or cause.traceback)


def file_not_yet_made(case: Case) -> FileUse | None:
    """Return where a rank looked for a file, as if to make it, whose absence then ended another rank."""
    cause = case.cause
    name = missing_file(cause.message).removeprefix("./") if cause is not None else ""
    if cause is None or cause.rank is None or not name:
        return None
    looks = [each for each in case.observed.of(FileUse) if each.op == "miss" and f"/{each.path}".endswith(f"/{name}")]
    if any(each.rank == cause.rank for each in looks):
        return None  # it knew: perhaps nobody makes the file
    return next(iter(looks), None)


def _meaningful(lines: Sequence[str]) -> list[str]:
    """Return the last lines that a reader can use: without the frames of C++, and none too long."""
    plain = (_PREFIX.sub("", line, count=1)[:_LONGEST_LINE] for line in lines[-10 * _MAX_LINES :])
    return [line.rstrip() for line in plain if not _NOISE.match(line)][-_MAX_LINES:]


def _quote(lines: Sequence[str]) -> str:
    """Return the last line that complains, without the place in C++ where it comes from; "" if none does."""
    line = next((line for line in reversed(lines) if _COMPLAINT.search(line)), "").strip()
    line = line.partition("what():")[2].strip() or line
    if line.startswith("["):  # [enforce fail at pair.cc:456] or [/pytorch/third_party/gloo/…/pair.cc:456]
        line = line.partition("] ")[2] or line
    return line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…"
