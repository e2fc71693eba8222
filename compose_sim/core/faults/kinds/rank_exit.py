"""What is a rank that leaves without a word? It exits at once with a status, 0 too, with no exception and no clean-up."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.rank_faults import ended


def _code(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 256):
        raise ValueError(f"'{text}' is not an exit code from 0 to 255")
    return int(text)


TARGET = "rank"
SUMMARY = "Have a rank exit at once with a code, without exception or clean-up."
ENGINES = ("docker", "local")
NEEDS = ""
LASTS = False
OPTIONS: dict[str, Option] = {"code": (_code, 1, "Exit code, 1 when left out.")}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """`os._exit` on the rank's main thread."""
    code = fault.options.get("code", 1)
    return ended(fault, scene, how=f"exits with status {code}", order="rank_fault", act="exit", code=code)
