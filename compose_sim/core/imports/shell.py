"""Read a shell script as a list of simple commands, without running any of it.

Assignments and variables are followed from top to bottom; conditions, loops and functions are read as if each line ran once.
What only the cluster can compute, such as `$(date)` or `$SLURM_JOB_ID`, stays as text behind the mark UNKNOWN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compose_sim.core.imports.arithmetic import computed

_KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "time", "exec", "nohup"}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_EXPANSION = re.compile(
    r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)"
    r"|(?P<command>\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)"
    r"|\$\{(?P<array>\w+)\[[@*]\]\}"
    r"|\$\{@:(?P<rest>\d+)\}|(?P<all>\$[@*]|\$\{[@*]\})"
    r"|\$\{(?P<braced>\w+)(?::?(?P<how>[-=?+])(?P<word>[^}]*))?\}"
    r"|\$(?P<number>\d)|\$(?P<name>[A-Za-z_]\w*)"
)
_NO_WORDS = re.compile(r"\$(@|\{@(:\d+)?\}|\{\w+\[@\]\})")  # expansions that may be no word at all, even in quotes
_ESCAPED = re.compile(r"\\([$\"\\`\n])")
UNKNOWN, _SPACE = "\ue002", "\ue003"  # the second is a space in such a text, which is one word
_MARK, _BETWEEN = "\ue000", "\ue001"  # stand for an escaped dollar sign, and for the end of a word in "${ARRAY[@]}"
# Variables that a scheduler or torch sets on the cluster. They stay as text; others that nobody sets are empty, as in a shell.
_OF_THE_CLUSTER = re.compile(r"(SLURM|SKYPILOT|PET|MASTER|RANK|WORLD|LOCAL|NODE|HOSTNAME|JOB|RAY|VC)_?\w*")


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


@dataclass(frozen=True, slots=True)
class Call:
    """A command as the shell would start it, with the variables that are set for it alone."""

    words: tuple[str, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Shell:
    """Follows the variables of a script; `exported` has those that its programs see, with their lines."""

    variables: dict[str, str]
    positional: Sequence[str] = ()
    exported: dict[str, tuple[str, int]] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    room: int = 16 << 20  # characters; a variable can stand for many others, and so on

    def calls(self, text: str, line: int = 1) -> Iterator[Call]:
        """Yield every call in a script that starts on this line of the file."""
        for command in split_commands(text, line):
            words = [*command.words]
            while words and _plain(words[0]) in _KEYWORDS:
                words.pop(0)
            own: dict[str, str] = {}
            while words and (match := _ASSIGNMENT.match(words[0][0].text)) and not words[0][0].quote:
                own |= self._assign(match, words.pop(0))
            if not words:
                self.variables |= own
            elif _plain(words[0]) in ("export", "declare", "local", "readonly", "typeset"):
                self.variables |= own
                self._export(words, command.line)
            elif called := tuple(value for word in words for value in self.expand(word)):
                yield Call(called, command.line, own)

    def _assign(self, match: re.Match[str], word: tuple[Piece, ...]) -> dict[str, str]:
        name, rest = match[1], (Piece(word[0].text[match.end() :]), *word[1:])
        array = next((piece for piece in rest if piece.quote == "("), None)
        if array:
            inner = [
                value for command in split_commands(array.text) for each in command.words for value in self.expand(each)
            ]
            self.arrays[name] = [*(self.arrays.get(name, []) if match[2] else []), *inner]
            return {}
        value = " ".join(self.expand(rest, splits=False))
        return {name: (self.variables.get(name, "") if match[2] else "") + value}

    def _export(self, words: Sequence[tuple[Piece, ...]], line: int) -> None:
        is_export = _plain(words[0]) == "export"
        for word in words[1:]:
            match = _ASSIGNMENT.match(word[0].text) if not word[0].quote else None
            if match:
                self.variables |= self._assign(match, word)
            name = match[1] if match else _plain(word)
            if is_export and name in self.variables:
                self.exported[name] = (self.variables[name], line)

    def expand(self, word: Sequence[Piece], *, splits: bool = True) -> list[str]:
        """Return the words that one word becomes: none for an unset variable, several for "$@"."""
        fields: list[str] = []
        is_open = False  # whether the next text belongs to the last field
        for piece in word:
            if piece.quote == '"' and _NO_WORDS.fullmatch(piece.text) and not self._filled(piece.text, quoted=True):
                continue
            text = (
                piece.text if piece.quote == "'" else self._filled(piece.text, quoted=bool(piece.quote) or not splits)
            )
            by_space = splits and not piece.quote and text != piece.text
            parts = re.split(r"\s+" if by_space else _BETWEEN, text) if piece.quote != "'" else [text]
            for number, part in enumerate(parts):
                if number == 0 and is_open:
                    fields[-1] += part
                elif part or piece.quote:
                    fields.append(part)
                is_open = bool(fields) and (bool(part) or bool(piece.quote))
        return fields

    def _filled(self, text: str, *, quoted: bool) -> str:
        if quoted:
            text = _ESCAPED.sub(lambda match: _MARK if match[1] == "$" else match[1].strip("\n"), text)
        between = _BETWEEN if quoted else " "

        def value(match: re.Match[str]) -> str:
            if match["sum"] and (result := computed(self._filled(match["sum"], quoted=True), self.variables)):
                return result
            if match["command"] or match["sum"] is not None or self.room < 0:
                return UNKNOWN + re.sub(r"\s", _SPACE, match[0].replace("$", _MARK))
            if match["array"]:
                found = self.arrays.get(match["array"], [self.variables.get(match["array"], "")])
                return self._counted(between.join(found))
            if match["all"] or match["rest"]:
                return self._counted(between.join([*self.positional][max(0, int(match["rest"] or 1)) :]))
            if match["number"] or (match["braced"] or "x").isdecimal():
                number = int(match["number"] or match["braced"])
                return self.positional[number] if number < len(self.positional) else ""
            name = match["braced"] or match["name"]
            return self._variable(name, match["how"], match["word"])

        return _EXPANSION.sub(value, text).replace(_MARK, "$")

    def _variable(self, name: str, how: str | None, word: str | None) -> str:
        known = self.variables.get(name) or " ".join(self.arrays.get(name, [])[:1])
        if how == "+":
            return self._filled(word or "", quoted=True) if known else ""
        if not known and how in ("-", "="):
            return self._filled(word or "", quoted=True)
        return self._counted(known) or (f"{UNKNOWN}{_MARK}{{{name}}}" if _OF_THE_CLUSTER.fullmatch(name) else "")

    def _counted(self, text: str) -> str:
        self.room -= len(text)
        return text


def without_marks(text: str) -> str:
    """Return a text as it was written, with what only the cluster can compute."""
    return text.replace(UNKNOWN, "").replace(_SPACE, " ")


def _plain(word: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in word)


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
        while self.at < len(self.text):
            self._step(self.text[self.at])
        self._end_command()
        return self.found

    def _step(self, letter: str) -> None:
        text, at = self.text, self.at
        if text.startswith("\\\n", at):
            self._move(2)
        elif letter == "\\":
            self._add(text[at + 1 : at + 2], "'", 2)
        elif letter == "'":
            self._quoted(text.find("'", at + 1), "'")
        elif letter == '"':
            self._quoted(self._closing_quote(), '"')
        elif text.startswith("$(", at) or text.startswith("${", at):
            end = self._closing(at + 1)
            self._add(text[at : end + 1], "", end + 1 - at)
        elif letter == "`":
            end = text.find("`", at + 1)
            self._add(text[at : end + 1] if end > 0 else text[at:], "", (end if end > 0 else len(text)) + 1 - at)
        elif letter == "#" and not self.pieces:
            end = text.find("\n", at)
            self._move((end if end >= 0 else len(text)) - at)
        elif heredoc := _HEREDOC.match(text, at):
            self.heredocs.append(heredoc[2])
            self._move(len(heredoc[0]))
        elif letter == "(" and self.pieces and self.pieces[-1].text.endswith("="):
            end = self._closing(at)
            self._add(text[at + 1 : end], "(", end + 1 - at)
        elif letter in "<>" or text.startswith("&>", at):
            self._redirect()
        elif letter in "\n;&|()":
            self._end_command()
            self._move(1)
            if letter == "\n" and self.heredocs:
                self._skip_heredocs()
        elif letter.isspace():
            self._end_word()
            self._move(1)
        else:
            self._add(letter, "", 1)

    def _move(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _add(self, text: str, quote: str, length: int) -> None:
        if not self.words and not self.pieces:
            self.start = self.line
        if self.pieces and not quote and not self.pieces[-1].quote:
            self.pieces[-1] = Piece(self.pieces[-1].text + text)
        else:
            self.pieces.append(Piece(text, quote))
        self._move(length)

    def _quoted(self, end: int, quote: str) -> None:
        end = end if end > 0 else len(self.text)
        self._add(self.text[self.at + 1 : end], quote, end + 1 - self.at)

    def _closing_quote(self) -> int:
        at = self.at + 1
        while at < len(self.text) and self.text[at] != '"':
            at = self._closing(at + 1) + 1 if self.text.startswith("$(", at) else at + 1 + (self.text[at] == "\\")
        return at

    def _closing(self, opening: int) -> int:
        """Return where the parenthesis or brace closes that opens here."""
        first, depth, at = self.text[opening], 0, opening
        last = {"(": ")", "{": "}"}[first]
        while at < len(self.text):
            depth += (self.text[at] == first) - (self.text[at] == last)
            if not depth:
                return at
            at += 1
        return len(self.text)

    def _redirect(self) -> None:
        if len(self.pieces) == 1 and self.pieces[0].text.isdecimal() and not self.pieces[0].quote:
            self.pieces.clear()
        self._end_word()
        length = len(re.match(r"&?[<>]+&?\|?", self.text[self.at :])[0])  # type: ignore[index]  # it starts with < or >
        self._move(length)
        self.skips_word = True

    def _skip_heredocs(self) -> None:
        for delimiter in self.heredocs:
            end = re.compile(rf"^\s*{delimiter}\s*$", re.MULTILINE).search(self.text, self.at)
            self._move((end.end() if end else len(self.text)) - self.at)
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
