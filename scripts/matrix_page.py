"""Keep the results of `make matrix` in bench/torch.json, and show them on docs/torch.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "bench" / "torch.json"
PAGE = ROOT / "docs" / "torch.md"
_BEGIN, _END = "<!-- matrix: written by `make matrix` -->", "<!-- /matrix -->"
_TABLE = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
_MAX_NAMED = 10  # failed tests of a row on the page; the data file has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the tests of one environment said."""

    torch: str
    python: str
    commit: str
    date: str
    passed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()  # ids of tests
    seconds: int = 0
    problem: str = ""  # why the tests did not run to their end

    @property
    def is_good(self) -> bool:
        """Whether tests ran, and all of them passed."""
        return self.passed > 0 and not self.failures and not self.problem

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What a later result of the same environment replaces: the version of torch, and Python's without the last part."""
        return _numbers(self.torch), _numbers(self.python)[:2]

    @property
    def words(self) -> str:
        """The result in words: `passed`, `**3 failed**`, or why there is none."""
        if self.problem:
            return f"**{self.problem}**"
        return f"**{len(self.failures)} failed**" if self.failures else "passed" if self.passed else "**no test ran**"


def read_rows(data: Path = DATA) -> list[Row]:
    """Return the rows of earlier runs."""
    if not data.exists():
        return []
    return [Row(**{**each, "failures": tuple(each["failures"])}) for each in json.loads(data.read_text())]


def write_row(row: Row, *, data: Path = DATA, page: Path = PAGE) -> None:
    """Add a row, or replace that of the same environment, in the data file and on the page."""
    rows = sorted([each for each in read_rows(data) if each.key != row.key] + [row], key=lambda each: each.key)
    data.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    page.write_text(with_table(page.read_text(), rows))


def with_table(text: str, rows: Iterable[Row]) -> str:
    """Return the text of the page with the table of these rows between its markers."""
    table = "\n".join([_BEGIN, "", *table_lines(list(rows)), "", _END])
    if len(_TABLE.findall(text)) != 1:
        raise ValueError(f"the page needs one pair of markers: {_BEGIN} and {_END}")
    return _TABLE.sub(lambda _: table, text)


def table_lines(rows: list[Row]) -> list[str]:
    """Return the table in Markdown, and below it the tests that failed."""
    lines = ["| torch | Python | result | tests passed | minutes | date | commit |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row.torch, row.python, row.words, row.passed, f"{row.seconds / 60:.1f}", row.date, row.commit)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for row in rows:
        if row.failures:
            named = [f"`{each}`" for each in row.failures[:_MAX_NAMED]]
            more = len(row.failures) - len(named)
            named += [f"and {more} more"] if more else []
            lines += ["", f"Failed with torch {row.torch} and Python {row.python}: {', '.join(named)}."]
    return lines


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
