"""Split a shell script into simple commands and their words, with the quotes around each part of a word."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"(?P<nothing>\\\n|(?<![^\s;&|()])(?<!\\\s)#[^\n]*)"
    r"|\\(?P<escaped>.?)"
    r"|'(?P<single>[^']*)'?"
    r'|(?P<double>")'
    r"|(?P<nested>\$[({])"
    r"|(?P<array>(?<==)\()"
    r"|(?P<heredoc><<-?\s*(['\"]?)(?P<delimiter>\w+)\8)"
    r"|(?P<redirection>(?:(?<![^\s;&|()])\d+)?&?[<>]+&?\|?)"
    r"|(?P<end>[\n;&|()])"
    r"|(?P<blank>[^\S\n]+)"
    r"|(?P<plain>`[^`]*`?|[^\s\\'\"`$#<>&|;()]+|.)",
    re.DOTALL,
)
_NESTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<=\s)#[^\n]*|[(){}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: its text, and the quote around it (`(` for an array)."""

    text: str
    quote: str = ""


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """A simple command: the words before expansion, and the line."""

    words: tuple[tuple[Piece, ...], ...]
    line: int


def closing(text: str, opening: int) -> int:
    """Return where the parenthesis or brace closes that opens here; the end of the text if none does."""
    depth, (first, last) = 0, "()" if text[opening] == "(" else "{}"
    for match in _NESTED.finditer(text, opening):
        depth += (match[0] == first) - (match[0] == last)
        if not depth:
            return match.start()
    return len(text)


def split_commands(text: str, line: int = 1) -> list[SimpleCommand]:
    """Return the simple commands of a script, whose first line has this number."""
    return _Splitter(text, line).commands()


@dataclass(slots=True)
class _Splitter:
    text: str
    line: int
    at: int = 0
    start: int = 0
    pieces: list[Piece] = field(default_factory=list)
    words: list[tuple[Piece, ...]] = field(default_factory=list)
    found: list[SimpleCommand] = field(default_factory=list)
    heredocs: list[str] = field(default_factory=list)
    skips_word: bool = False  # the next word is the file of a redirection

    def commands(self) -> list[SimpleCommand]:
        while token := _TOKEN.match(self.text, self.at):
            self._step(token, token.lastgroup or "")
        self._end_command()
        return self.found

    def _step(self, token: re.Match[str], kind: str) -> None:
        text, at, end = self.text, self.at, token.end()
        if kind in ("escaped", "single"):
            self._add(token[kind], "'", end)
        elif kind == "plain":
            self._add(token[0], "", end)
        elif kind == "double":
            end = self._closing_quote()
            self._add(text[at + 1 : end], '"', end + 1)
        elif kind == "nested":
            end = closing(text, at + 1) + 1
            self._add(text[at:end], "", end)
        elif kind == "array":
            end = closing(text, at)
            self._add(text[at + 1 : end], "(", end + 1)
        else:
            self._separate(token, kind)
            self._move(end)
            if token[0] == "\n":
                self._skip_heredocs()

    def _separate(self, token: re.Match[str], kind: str) -> None:
        if kind == "end":
            self._end_command()
        elif kind == "heredoc":
            self.heredocs.append(token["delimiter"])
        elif kind != "nothing":
            self._end_word()
            self.skips_word = kind == "redirection" or self.skips_word

    def _move(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _add(self, text: str, quote: str, end: int) -> None:
        if not self.words and not self.pieces:
            self.start = self.line
        if self.pieces and not quote and not self.pieces[-1].quote:
            self.pieces[-1] = Piece(self.pieces[-1].text + text)
        else:
            self.pieces.append(Piece(text, quote))
        self._move(end)

    def _closing_quote(self) -> int:
        text, at = self.text, self.at + 1
        while at < len(text) and text[at] != '"':
            at = closing(text, at + 1) + 1 if text[at : at + 2] in ("$(", "${") else at + 1 + (text[at] == "\\")
        return at

    def _skip_heredocs(self) -> None:
        for delimiter in self.heredocs:
            end = re.compile(rf"^\s*{delimiter}\s*$", re.MULTILINE).search(self.text, self.at)
            self._move(end.end() if end else len(self.text))
        self.heredocs.clear()

    def _end_word(self) -> None:
        if self.pieces and not self.skips_word:
            self.words.append(tuple(self.pieces))
        self.skips_word = self.skips_word and not self.pieces
        self.pieces = []

    def _end_command(self) -> None:
        self._end_word()
        self.skips_word = False
        if self.words:
            self.found.append(SimpleCommand(tuple(self.words), self.start))
        self.words = []
