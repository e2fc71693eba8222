"""Define what is read from the job file of a cluster, and what is written as one. A plug-in reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from compose_sim.errors import SpecError

READERS = "composesim.job_readers"  # a module with `is_job_file` and `read_job`
WRITERS = "composesim.job_writers"  # target -> `export`
Verdict = Literal["taken", "changed", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What became of one value of a job file."""

    verdict: Verdict
    key: str  # as in the file: `spec.trainer.numNodes`, `--nodes`
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """A job file as a spec: the values that a `composesim.yaml` could hold, and what became of everything in the file."""

    source: str
    kind: str  # `TrainJob`, `sbatch script`
    values: Mapping[str, Any]
    lines: Mapping[str, int]  # key of `values` -> the line that it comes from
    notes: tuple[Note, ...]
    text: str = field(repr=False, default="")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return how the file was read, in words: how many values, and each that means something else here."""
        counts = {verdict: [note.verdict for note in self.notes].count(verdict) for verdict in get_args(Verdict)}
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        changed = [f"line {note.line}: {note.text}" for note in self.notes if note.verdict == "changed"]
        return (
            f"{self.source} is read as {self.kind}: {listed}. All of them: composesim plan -f {self.source}",
            *changed,
        )

    def error(self, key: str, problem: str, *, hint: str = "") -> SpecError:
        """Return a SpecError about the value of this key, with its line as evidence."""
        from compose_sim.core.request.yaml_source import error_at  # other requests do not wait for yaml

        return error_at(self.source, self.text, self.lines.get(key, 1), problem, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something in the spec that is different on the cluster."""

    what: str  # a key of the spec, or what the script reads
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A document for a cluster."""

    target: str
    text: str
    changes: tuple[Change, ...]
    submit: str  # a command in which FILE stands for the document

    @property
    def file(self) -> str:
        """Return the name of the document in a folder: job.sbatch."""
        return f"job.{self.submit.partition(' ')[0]}"
