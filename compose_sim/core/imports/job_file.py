"""Hold a job file while it is read: which values were used, what they became, and on which lines they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from compose_sim.core.request.yaml_source import KeyPath, YamlText, dotted, error_at
from compose_sim.errors import SpecError

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
        return error_at(self.source, self.text, self.lines.get(key, 1), problem, hint=hint)


def template_hint(text: str) -> str:
    """Return what to do about a value that is to be filled in before the file is submitted; "" for another value."""
    return "fill in the template first, for example: envsubst < FILE > job.yaml" if "$" in text or "{{" in text else ""


@dataclass(slots=True)
class Draft:
    """What has been read so far."""

    source: str
    text: str = field(repr=False)
    has_program: bool = False  # whether the user names the program, so that the file need not
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def take(self, field_of_spec: str, value: Any, key: str, line: int, *, said: str = "", changed: str = "") -> None:
        """Set a value of the spec. `said` replaces the value in the note; `changed` says how it differs from the file."""
        if self.values.get(field_of_spec, value) != value:
            self._overrule(field_of_spec, line)
        self.values[field_of_spec] = value
        self.lines[field_of_spec] = line
        shown = said or (f"{field_of_spec} {value}" if isinstance(value, str | int | float) else field_of_spec)
        self.note("changed" if changed else "taken", key, line, f"{shown}: {changed}" if changed else shown)

    def note(self, verdict: Verdict, key: str, line: int, text: str) -> None:
        """Record what became of a value."""
        self.notes.append(Note(verdict=verdict, key=key, line=line, text=text))

    def _overrule(self, field_of_spec: str, line: int) -> None:
        """Record that what was taken for a field does not count, because another line has another value."""
        for index, note in enumerate(self.notes):
            if note.verdict == "taken" and note.line != line and note.text.partition(" ")[0] == field_of_spec:
                self.notes[index] = replace(note, verdict="ignored", text=f"{note.text}: line {line} counts")

    def error(self, line: int, problem: str, *, hint: str = "") -> SpecError:
        """Return a SpecError with this line of the file."""
        return error_at(self.source, self.text, line, problem, hint=hint)

    def finished(self, kind: str) -> JobFile:
        """Return the result, with the notes in the order of the file."""
        notes = tuple(sorted(dict.fromkeys(self.notes), key=lambda note: note.line))
        return JobFile(source=self.source, kind=kind, values=self.values, lines=self.lines, notes=notes, text=self.text)


@dataclass(slots=True)
class Object:
    """A YAML document that records which of its values were used, so that the others can be listed."""

    read: YamlText
    draft: Draft
    used: set[KeyPath] = field(default_factory=set)

    def peek(self, *path: str | int) -> Any:
        """Return the value at this path, or None, without counting it as used."""
        return self._at(path)

    def has(self, *path: str | int) -> bool:
        """Return whether there is a value at this path."""
        return self._at(path) is not None

    def get(self, *path: str | int) -> Any:
        """Return the value at this path, or None, and count it and all below it as used."""
        self.used.add(path)
        return self._at(path)

    def keys(self, *path: str | int) -> list[Any]:
        """Return the keys of the mapping, or the indexes of the list, at this path; none if there is neither."""
        value = self._at(path)
        return [*value] if isinstance(value, Mapping) else [*range(len(value))] if isinstance(value, list) else []

    def declared(self, *path: str | int) -> list[str]:
        """Return the keys of the mapping at this path, also those whose value is null."""
        return [str(at[-1]) for at in self.read.lines if at and at[:-1] == path]

    def text(self, *path: str | int) -> str:
        """Return a scalar, or "" if there is none; raise SpecError for a mapping or a list."""
        value = self.get(*path)
        if isinstance(value, Mapping | list):
            raise self.error(path, f"{dotted(path)} is not a single value")
        return str(value or "")

    def number(self, *path: str | int, least: int = 0) -> int | None:
        """Return a whole number, or None if there is none; raise SpecError for another value."""
        text = self.text(*path)
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
            problem = f"{dotted(path)}: '{text:.40}' is not a whole number of at least {least}"
            raise self.error(path, problem, hint=template_hint(text))
        return int(text)

    def words(self, *path: str | int) -> list[str]:
        """Return a list of scalars; raise SpecError for anything else."""
        value = self.get(*path)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(word, Mapping | list) for word in value):
            raise self.error(path, f"{dotted(path)} is not a list of words")
        return [str(word) for word in value]

    def line(self, *path: str | int) -> int:
        """Return the line of a value."""
        return self.read.line_of(path)

    def take(self, field_of_spec: str, value: Any, *path: str | int, said: str = "", changed: str = "") -> None:
        """Set a value of the spec that comes from this path."""
        self.draft.take(field_of_spec, value, dotted(path), self.line(*path), said=said, changed=changed)

    def change(self, text: str, *path: str | int) -> None:
        """Record that the value at this path means something else here."""
        self.used.add(path)
        self.draft.note("changed", dotted(path), self.line(*path), text)

    def ignore(self, text: str, *path: str | int) -> None:
        """Record that the value at this path has no effect, and why."""
        self.used.add(path)
        self.draft.note("ignored", dotted(path), self.line(*path), text)

    def error(self, path: Sequence[str | int], problem: str, *, hint: str = "") -> SpecError:
        """Return a SpecError with the line of this path."""
        return self.draft.error(self.line(*path), problem, hint=hint)

    def ignore_rest(self, reasons: Mapping[str, str]) -> None:
        """List everything that was not used, with the reason for its key."""
        for path in self._unused((), self.read.values):
            key = next((part for part in reversed(path) if part in reasons), "")
            self.ignore(reasons.get(str(key), "has no counterpart here"), *path)

    def _at(self, path: KeyPath) -> Any:
        value: Any = self.read.values
        for part in path:
            if isinstance(value, Mapping):
                value = value.get(str(part))
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def _unused(self, path: KeyPath, value: Any) -> list[KeyPath]:
        if path in self.used:
            return []
        if any(other[: len(path)] == path for other in self.used) or not path:
            inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
            return [found for key, each in inner for found in self._unused((*path, key), each)]
        return [path]
