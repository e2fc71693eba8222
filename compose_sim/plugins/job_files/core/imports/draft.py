"""Hold a job file while it is read: which values were used, what they became, and on which lines they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compose_sim.core.request.job_files import JobFile, Note, Verdict
from compose_sim.core.request.yaml_source import KeyPath, YamlText, dotted, error_at
from compose_sim.errors import SpecError


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
            self.overrule(field_of_spec, line)
        self.values[field_of_spec] = value
        self.lines[field_of_spec] = line
        shown = said or (f"{field_of_spec} {value}" if isinstance(value, str | int | float) else field_of_spec)
        self.note("changed" if changed else "taken", key, line, f"{shown}: {changed}" if changed else shown)

    def note(self, verdict: Verdict, key: str, line: int, text: str) -> None:
        """Record what became of a value."""
        self.notes.append(Note(verdict=verdict, key=key, line=line, text=text))

    def settle(self, key: str, line: int, *, is_read: bool, reason: str = "") -> None:
        """Record a value that no other note is about: taken if it was read, else ignored."""
        text = "decides other values" if is_read else reason or "has no counterpart here"
        self.note("taken" if is_read else "ignored", key, line, text)

    def overrule(self, said: str, line: int) -> None:
        """Record that what was taken for a field, or for `env NAME`, does not count, because another line has another value."""
        for index, note in enumerate(self.notes):
            if note.verdict == "taken" and note.line != line and f"{note.text} ".startswith(f"{said} "):
                self.notes[index] = replace(note, verdict="ignored", text=f"{note.text}: line {line} counts")

    def error(self, line: int, problem: str, *, hint: str = "") -> SpecError:
        """Return a SpecError with this line of the file."""
        hint = hint or f"correct line {line}, then: composesim plan -f {self.source}"
        return error_at(self.source, self.text, line, problem, hint=hint)

    def finished(self, kind: str) -> JobFile:
        """Return the result, with the notes in the order of the file."""
        notes = tuple(sorted(dict.fromkeys(self.notes), key=lambda note: note.line))
        return JobFile(source=self.source, kind=kind, values=self.values, lines=self.lines, notes=notes, text=self.text)


@dataclass(slots=True)
class Object:
    """A YAML document that records which of its values were read, so that every value ends in a note."""

    read: YamlText
    draft: Draft
    used: set[KeyPath] = field(default_factory=set)  # what was read, with all below it

    def peek(self, *path: str | int) -> Any:
        """Return the value at this path, or None, without counting it as read."""
        return self._at(path)

    def has(self, *path: str | int) -> bool:
        """Return whether there is a value at this path."""
        return self._at(path) is not None

    def get(self, *path: str | int) -> Any:
        """Return the value at this path, or None, and count it and all below it as read."""
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

    def note(self, verdict: Verdict, text: str, *path: str | int) -> None:
        """Record what became of the value at this path: changed or ignored values include all below them."""
        self.draft.note(verdict, dotted(path), self.line(*path), text)

    def error(self, path: Sequence[str | int], problem: str, *, hint: str = "") -> SpecError:
        """Return a SpecError with the line of this path."""
        return self.draft.error(self.line(*path), problem, hint=hint)

    def settle(self, reasons: Mapping[str, str]) -> None:
        """Note every value that no note is about: taken if it was read, else ignored with the reason for its key."""
        own = [note for note in self.draft.notes if self.line() <= note.line <= self.read.last_line]
        said = {note.key: note.verdict for note in own}
        said |= {note.key: note.verdict for note in own if note.verdict != "taken"}
        for path, is_read in _unsaid((), self.read.values, said, self.used, reasons, is_read=False):
            key = next((str(part) for part in reversed(path) if part in reasons), "")
            self.draft.settle(dotted(path), self.line(*path), is_read=is_read, reason=reasons.get(key, ""))

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


def _unsaid(
    path: KeyPath,
    value: Any,
    said: Mapping[str, Verdict],
    used: Collection[KeyPath],
    reasons: Mapping[str, str],
    *,
    is_read: bool,
) -> list[tuple[KeyPath, bool]]:
    """Return the outermost paths in a value that no note is about, and whether they were read."""
    is_read = is_read or path in used
    verdict = said.get(dotted(path))
    inner = [*value.items()] if isinstance(value, Mapping) else [*enumerate(value)] if isinstance(value, list) else []
    if verdict in ("changed", "ignored") or (verdict and (is_read or not inner)):
        return []
    found = [each for key, part in inner for each in _unsaid((*path, key), part, said, used, reasons, is_read=is_read)]
    alike = path and not verdict and len({read for _, read in found}) < 2
    has_one_reason = any(part in reasons for part in path) or not any(key in reasons for key, _ in inner)
    if alike and has_one_reason and [each for each, _ in found] == [(*path, key) for key, _ in inner]:
        return [(path, found[0][1] if found else is_read)]
    return found
