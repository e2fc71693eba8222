"""Read a shell script as a list of simple commands, without running any of it.

Assignments and variables are followed from top to bottom; conditions, loops and functions are read as if each line ran once.
What only the cluster can compute, such as `$(date)` or `$SLURM_JOB_ID`, stays as text behind the mark UNKNOWN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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


_KEYWORDS = {
    *("if", "then", "else", "elif", "fi", "do", "done", "while", "until"),
    *("{", "}", "!", "time", "/usr/bin/time", "exec", "nohup"),
}
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=", re.DOTALL)
_EXPANSION = re.compile(r"\$(?P<opening>[({])|`[^`]*`?|\$(?:[A-Za-z_]\w*|[\d@*#?])")
_PARAMETER = re.compile(r"(?P<name>\w+|[@*])(?:\[(?P<index>[@*\d]+)\])?(?P<rest>.*)", re.DOTALL)
_OPERATOR = re.compile(r":?([-=?+])")
_DEEPEST = 9  # expansions in one another; no script needs more, and a file may try to exhaust the stack
_NO_WORDS = re.compile(r"\$(@|\{@(:\d+)?\}|\{\w+\[@\]\})")  # expansions that may be no word at all, even in quotes
_ESCAPED = re.compile(r"\\([$\"\\`\n])")
UNKNOWN, _SPACE = "\ue002", "\ue003"  # the second is a space in such a text, which is one word
_MARK, _BETWEEN = "\ue000", "\ue001"  # stand for an escaped dollar sign, and for the end of a word in "${ARRAY[@]}"
# Variables that a scheduler or torch sets on the cluster. They stay as text; others that are not set are empty, as in a shell.
_OF_THE_CLUSTER = re.compile(r"(SLURM|SKYPILOT|PET|MASTER|RANK|WORLD|LOCAL|NODE|HOSTNAME|JOB|RAY|VC)_?\w*")


@dataclass(frozen=True, slots=True)
class Call:
    """A command as the shell would start it, with the variables that are set for it alone."""

    words: tuple[str, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict)
    nodes_and_tasks: tuple[int, int] | None = (
        None  # nodes that run it, and how often each does, if the job file says so
    )


@dataclass(slots=True)
class Shell:
    """Follows the variables of a script; `exported` has those that its programs see, with their lines."""

    variables: dict[str, str]
    positional: Sequence[str] = ()
    has_arguments: bool = False  # whether whoever submits the script may pass it arguments, which are not in the file
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
                if called[0] == "for" and called[2:3] == ("in",):
                    self.variables[called[1]] = "".join(called[3:4])
                yield Call(called, line=command.line, variables=own)

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

    def _filled(self, text: str, *, quoted: bool, depth: int = 0) -> str:
        if quoted:
            text = _ESCAPED.sub(lambda match: _MARK if match[1] == "$" else match[1].strip("\n"), text)
        filled, at = "", 0
        while match := _EXPANSION.search(text, at):
            end = closing(text, match.start("opening")) + 1 if match["opening"] else match.end()
            value = self._value(text[match.start() : end], _BETWEEN if quoted else " ", depth)
            self.room -= len(value)
            filled += text[at : match.start()] + value
            at = end
        return (filled + text[at:]).replace(_MARK, "$")

    def _value(self, written: str, between: str, depth: int) -> str:
        """Return what `$NAME`, `${NAME:-word}`, `$(command)` or `$((sum))` stands for."""
        unknown = UNKNOWN + re.sub(r"\s", _SPACE, written)
        if depth > _DEEPEST or self.room < 0:
            return unknown
        if written.startswith("$(("):
            return _computed(self._filled(written[3:-2], quoted=True, depth=depth + 1), self.variables) or unknown
        match = _PARAMETER.fullmatch(written[2:-1] if written.startswith("${") else written[1:])
        if match is None or written[0] == "`" or written.startswith("$("):
            return unknown
        name, rest, operator = match["name"], match["rest"], _OPERATOR.match(match["rest"])
        if name in "@*":
            first = int(rest[1:]) if re.fullmatch(r":\d{1,4}", rest) else 1
            return between.join([*self.positional][first:])
        known = self._known(name, match["index"], between)
        if operator:
            word = self._filled(rest[operator.end() :].replace('"', ""), quoted=True, depth=depth + 1)
            if operator[1] == "+":
                return word if known else ""
            if not known and operator[1] in "-=":
                self.variables |= {name: word} if operator[1] == "=" else {}
                return word
        elif known and rest:  # such as ${NAME%.*}
            return unknown
        is_set_there = (name.isdecimal() and self.has_arguments) or _OF_THE_CLUSTER.fullmatch(name)
        return known or (f"{UNKNOWN}${{{name}}}" if is_set_there else "")

    def _known(self, name: str, index: str | None, between: str) -> str:
        """Return the value of a variable, of an argument or of elements of an array; "" if there is none."""
        number = int(index or 0) if (index or "0").isdecimal() and len(index or "") < 9 else 0
        if name.isdecimal():
            return "".join(self.positional[int(name) : int(name) + 1]) if len(name) < 9 else ""
        elements = self.arrays.get(name, [])
        if index in ("@", "*"):
            return between.join(elements) or self.variables.get(name, "")
        return (index is None and self.variables.get(name)) or "".join(elements[number : number + 1])


def without_marks(text: str) -> str:
    """Return a text as it was written, with what only the cluster can compute."""
    return text.replace(UNKNOWN, "").replace(_SPACE, " ")


def _computed(text: str, variables: Mapping[str, str]) -> str:
    """Return the value of `$((text))`, or "" if it is more than a sum of products of known whole numbers."""
    filled = re.sub(r"[A-Za-z_]\w*", lambda match: variables.get(match[0], "?"), text)
    total = 0
    for term in re.sub(r"\s", "", filled).replace("-", "+-").split("+"):
        factors = term.split("*")
        if not all(re.fullmatch(r"-?\d{1,9}", factor) for factor in factors) or len(factors) > 3:
            return ""
        total += math.prod(map(int, factors))
    return str(total)


def _plain(word: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in word)
