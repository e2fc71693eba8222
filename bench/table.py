"""Render the results as Markdown: a table of the goals, then the figures of every contestant, then the notes."""

from __future__ import annotations

from statistics import median
from typing import Any


def as_markdown(results: dict[str, Any]) -> str:
    rows = sorted(results["rows"].items(), key=lambda item: int(item[0]))
    parts = [
        "# How fast",
        "",
        "Written by `make bench`; each row was measured in one run, its contestants in turn (A B C A B C …). Seconds",
        "are wall clock of the whole command: median [fastest–slowest]. A ratio is the median of the rounds' ratios.",
        "",
        "Machine: " + ", ".join(f"{name} {value}" for name, value in results["machine"].items()) + ".",
        "",
        "| | what | goal | measured | beside it | ratio | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    parts += [_goal_line(key, row, goal) for key, row in rows for goal in row["goals"]]
    for key, row in rows:
        parts += ["", f"## {key}. {row['title']}", "", f"Measured on {row['date']}, commit {row['commit']}.", ""]
        parts += ["| contestant | seconds | runs |", "|---|---|---|"]
        parts += [_contestant_line(name, figures) for name, figures in row["contestants"].items()]
        parts += [f"| {_cell(name)} | not measured: {_cell(reason)} | |" for name, reason in row["missing"].items()]
        if row["notes"]:
            parts += ["", *(f"- {note}" for note in row["notes"])]
    return "\n".join(parts) + "\n"


def _goal_line(key: str, row: dict[str, Any], goal: dict[str, Any]) -> str:
    if goal["reached"] is None:
        return f"| {key} | {row['title']} | {goal['goal']} | not measured | | | {_cell(goal['why'])} |"
    mine = _figures(row["contestants"][goal["mine"]])
    rival = _figures(row["contestants"][goal["rival"]]) if goal["rival"] else ""
    ratio = "{:.2f} [{:.2f}–{:.2f}]".format(*goal["ratio"]) if goal["ratio"] else ""
    reached = "yes" if goal["reached"] else f"**no**, by {goal['excess_s']:.2f} s"
    return f"| {key} | {row['title']} | {goal['goal']} | {mine} | {rival} | {ratio} | {reached} |"


def _contestant_line(name: str, figures: dict[str, Any]) -> str:
    runs = str(len(figures["seconds"]))
    if figures["failures"]:
        runs += f"; {len(figures['failures'])} more failed, the last: {_cell(figures['failures'][-1])}"
    return f"| {_cell(name)} | {_figures(figures)} | {runs} |"


def _figures(figures: dict[str, Any]) -> str:
    seconds = figures["seconds"]
    digits = 3 if max(seconds) < 1 else 2
    return f"{median(seconds):.{digits}f} s [{min(seconds):.{digits}f}–{max(seconds):.{digits}f}]"


def _cell(text: str) -> str:
    """Return one line without the bar that would end the cell, shortened for reading."""
    text = " ".join(text.replace("|", "/").split())
    return text if len(text) <= 300 else text[:297] + "…"
