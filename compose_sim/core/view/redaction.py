"""Remove secrets from the files of a run: the values that are known to be secret, and texts that look like tokens.

Known are the values of variables and options whose names look like secrets (`core/plan/environment.py`), passwords in addresses, and
the secrets of the run itself. Each is found in all spellings that composesim writes: plain, in JSON, in a compose file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from compose_sim.core.plan.environment import MASK, is_secret

_SHORTEST = 6  # characters of a value that is searched for everywhere: a shorter one would be found in other words
_MIN_DIGITS = 8  # of a value that is a number
_NO_SECRETS = ("false", "true", "none", "null", "default", "disabled", "enabled")
_PASSWORD = re.compile(r"(?<=://)([^/\s:@\"'\\]*):([^/\s@\"'\\]+)(?=@)")
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"  # of a word, also after a line break that JSON has escaped
_TOKENS = re.compile(
    _START + r"(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA)[A-Za-z0-9_-]{16,}"
    r"|(?<=[?&#]token=)[\w.~-]{8,}"
    r"|(?<=Bearer )[\w.~+/-]{8,}=*"
)


class Redaction:
    """Replaces secrets by `***`."""

    def __init__(self, secrets: Iterable[str], variables: Iterable[str] = ()) -> None:
        """Take values that are secret, and the names of variables whose values are, however short."""
        spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
        self._known = sorted(spellings, key=lambda each: (-len(each), each))
        names = "|".join(map(re.escape, sorted(set(variables), key=lambda name: (-len(name), name)))) or "(?!)"
        self._assigned = re.compile(
            rf"({_START}(?:{names})\\*[\"']?\s?[=:]\s?(?:\\*[\"'])?)(?:(?<=[\"'])[^\"'\\\n]*|(?<![\"'])[^\s\"',}}\\]+)"
        )

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for known in self._known:
            text = text.replace(known, MASK)
        text = self._assigned.sub(rf"\1{MASK}", text)
        return _TOKENS.sub(MASK, _PASSWORD.sub(rf"\1:{MASK}", text))

    def value(self, value: Any, *, most: float = float("inf")) -> Any:
        """Return a value of dicts, lists and scalars without secrets; ValueError if it is anything else, or has more parts."""
        left = most

        def plain(value: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise ValueError(f"more than {most:,} values")
            if isinstance(value, str):
                return self.text(value)
            if isinstance(value, Mapping):
                return {plain(key): plain(each) for key, each in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(map(plain, value))
            if value is None or isinstance(value, bool | int | float):
                return value
            raise ValueError(f"{type(value).__name__} is not a plain value")

        return plain(value)

    def words(self, words: Iterable[str]) -> list[str]:
        """Return the words of a command; those that belong to an option or variable with a secret name are masked."""
        shown: list[str] = []
        hides = False
        for word in words:
            name, assigns, _ = word.partition("=")
            secret = is_secret(name.lstrip("-").replace("-", "_"))
            shown.append(MASK if hides else f"{name}={MASK}" if assigns and secret else self.text(word))
            hides = secret and not assigns and word.startswith("-") and not hides
        return shown


def secrets_of(environments: Iterable[Mapping[str, str]], words: Iterable[str] = ()) -> set[str]:
    """Return what is secret among variables and the words of commands."""
    found: set[str] = set()
    option = ""
    for environment in environments:
        for name, value in environment.items():
            found.update(each[1] for each in _PASSWORD.findall(value))
            if is_secret(name):
                found.add(value)
    for word in words:
        name, _, value = word.partition("=")
        found.update(each[1] for each in _PASSWORD.findall(word))
        if is_secret(name.lstrip("-").replace("-", "_")) and value:
            found.add(value)
        elif option and is_secret(option.lstrip("-").replace("-", "_")):
            found.add(word)
        option = word if word.startswith("-") and not value else ""
    return found


def _spellings(secret: str) -> Iterator[str]:
    """Yield the forms in which a value appears in files, and those of its lines: a key of several lines may be split."""
    for part in {secret, secret.strip(), *secret.splitlines()}:
        if len(part) < _SHORTEST or part.lower() in _NO_SECRETS or (part.isdecimal() and len(part) < _MIN_DIGITS):
            continue
        escaped = [part, part.replace("$", "$$")]
        for _ in range(2):  # a line of a log that is JSON itself is escaped twice in an event
            escaped += [json.dumps(each, ensure_ascii=ascii)[1:-1] for each in escaped for ascii in (True, False)]
        yield from {*escaped, repr(part)[1:-1], quote(part, safe=""), part.replace("<", "\\u003c")}
