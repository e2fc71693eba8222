"""Render the rows of a soak as Markdown: one table of required and measured values, then the notes of each row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bench import machine
from bench.soak.setting import Row, Soak

_KNOWN = {
    "recovery": "a sketch of our rendezvous 2.1–2.5 s, 10 of 10; stock torchrun 46 s, never for node 0",
    "faults": "2,000 (torchft's published soak)",
    "crashes": "pumba leaks paused containers and netem",
    "daemon": "",
    "flood": "",
    "stream": "",
    "checkpoints": "",
    "large": "",
    "busy": "",
    "verdicts": "",
    "kills": "",
}


def as_markdown(rows: dict[str, dict[str, Any]]) -> str:
    """Return the whole page; `rows` maps names to what `as_json` returned."""
    parts = [
        "# What a run withstands",
        "",
        "Written by `make soak MINUTES=… SEED=…`; a row that was not measured again keeps its figures, date and machine.",
        "",
        "| what | wanted | seen | the best known | reached |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        reached = "yes" if row["reached"] else "**no**"
        parts.append(f"| {row['what']} | {row['wanted']} | {row['seen']} | {_KNOWN[name]} | {reached} |")
    for name, row in rows.items():
        parts += ["", f"## {name}", "", f"{row['when']}. {row['machine']}.", ""]
        parts += [f"- {note}" for note in row["notes"] if note]
    return "\n".join(parts) + "\n"


def as_json(row: Row, soak: Soak, *, busy: float) -> dict[str, Any]:
    """Return a row with the time and machine of the measurement."""
    described = ", ".join(f"{name} {value}" for name, value in machine.describe().items())
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    return {
        "what": row.what,
        "wanted": row.wanted,
        "seen": row.seen,
        "reached": row.reached,
        "notes": row.notes,
        "when": f"Measured on {when}, commit {machine.commit()}, seed {soak.seed}, {soak.engine} engine",
        "machine": f"Machine: {described}; {busy:.1f} cores were busy with other work before",
    }
