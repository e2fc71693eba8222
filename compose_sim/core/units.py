"""Convert text such as `2g`, `90s` or `1h30m` to bytes and seconds, and back."""

from __future__ import annotations

import re

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)\s*)+", re.IGNORECASE)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.IGNORECASE)
_MOST_DIGITS = 30  # more would be infinity


def parse_bytes(text: str | int) -> int:
    """Return the bytes of `512m`, `2g`, `1.5GiB` or a plain number; raise ValueError for other text."""
    match = _SIZE.fullmatch(str(text))
    if not match or len(match[1]) > _MOST_DIGITS:
        raise ValueError(f"'{text!s:.80}' is not a size: write it like 512m or 2g")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def parse_seconds(text: str | float) -> float:
    """Return the seconds of `90s`, `10m`, `1h30m` or a plain number; raise ValueError for other text."""
    plain = str(text).strip()
    if len(plain) <= _MOST_DIGITS and re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain):
        return float(plain)
    if len(plain) > _MOST_DIGITS or not _DURATION.fullmatch(plain):
        raise ValueError(f"'{text!s:.80}' is not a duration: write it like 90s, 10m or 1h30m")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(plain))


def format_bytes(count: float) -> str:
    """Return `1.5 KiB` for 1536: at most three figures."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_count(number: int, what: str) -> str:
    """Return `1 node`, `3 nodes`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def format_seconds(seconds: float) -> str:
    """Return `0.84 s`, `12.3 s` or `2 min 05 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
