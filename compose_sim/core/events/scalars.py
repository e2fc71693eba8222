"""Find the numbers of a training: in the lines that it prints, and in the event files of TensorBoard."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from compose_sim.core.events.events import printable

_LONGEST_LINE = 1000  # characters; the rest of a longer line is not read
_MAX_PAIRS = 32  # numbers of one line
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}(?:\.\d{0,20})?|\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3}|[kKMGT](?!\w))?"
_TIMES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_END = r"(?=$|[\s,;|)\]}%'\"])"
_NAME = r"[A-Za-z][A-Za-z0-9_/@-]{0,39}"
# Words that say what a number is without a sign between them, as in `loss 0.31`.
_KNOWN = (
    r"(?:(?:train|val|valid|test|eval|avg|mean|running)(?:ing|idation)?[ _/-]?)?"
    r"(?:loss|acc(?:uracy)?(?:@\d)?|ppl|perplexity|lr|learning[ _]rate|f1|bleu|rouge|auc|reward|return|grad[ _]norm|top-?[15]|"
    r"throughput)"
)
_PAIR = re.compile(rf"(?<![\w./:-])['\"]?({_NAME})['\"]?\s{{0,3}}(?:=\s{{0,3}}|:\s{{1,3}})['\"]?({_NUMBER}){_END}")
_MAY_BE_PAIR = re.compile(r"[=:]\s{0,3}['\"]?[-+]?\.?\d")
_KNOWN_PAIR = re.compile(rf"(?<![\w./:-])({_KNOWN})\s{{1,3}}({_NUMBER}){_END}", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![\w./-])(?:global[ _])?(?:step|iter(?:ation)?|batch)s?['\"]?\s{0,3}[=:#]?\s{0,3}(\d{1,15})\b", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![\w./-])(?:epoch|ep)\b", re.IGNORECASE)
_BAR = re.compile(r"(\d{1,15})/(?:\d{1,15}|\?) \[[^\]]{0,40}?, {0,3}[^,\]]{0,20}(?:it/s|s/it)(?:, ([^\]]{0,400}))?\]")
_IS_KNOWN = re.compile(_KNOWN, re.IGNORECASE)
_WORDS = (
    *("loss", "acc", "ppl", "perp", "lr", "rate", "f1", "bleu", "rouge", "auc", "reward", "return", "norm", "top"),
    "throughput",
)
_NO_METRICS = {
    *("epoch", "epochs", "step", "steps", "global_step", "iter", "iteration", "batch", "batch_size"),
    *("rank", "ranks", "local_rank", "global_rank", "world_size", "node", "nodes", "nproc", "pid", "port"),
    *("seed", "num_workers", "line", "device", "version", "size", "length"),
}


def printed_numbers(line: str) -> tuple[int | None, dict[str, float]] | None:
    """
    Return the step that a line names, if any, and its metrics by name; None for a line that is not about training.

    That is a line with a step, an epoch, a known metric or a progress bar, or one of nothing but pairs with a fraction among them.
    """
    text = line[:_LONGEST_LINE]
    lower = text.lower()
    has_pair, has_word = _MAY_BE_PAIR.search(text), any(word in lower for word in _WORDS)
    if not (has_pair or has_word):  # most lines: the other expressions cost more
        return None
    bar = _BAR.search(text)
    step = bar or _STEP.search(text)
    pairs = _PAIR.findall(bar[2] or "" if bar else text) if has_pair else []
    found = {name: _value(number) for name, number in pairs[:_MAX_PAIRS] if name.lower() not in _NO_METRICS}
    for name, number in _KNOWN_PAIR.findall(text)[:_MAX_PAIRS] if has_word and not bar else ():
        found.setdefault(name.replace(" ", "_"), _value(number))
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    if not found or not (step or _EPOCH.search(text) or any(map(_IS_KNOWN.match, found)) or _is_all_pairs(text, found)):
        return None
    return int(step[1]) if step else None, found


def _value(text: str) -> float:
    """Return the number that a line prints: 2077 for `2,077`, 1020 for `1.02K`."""
    times = _TIMES.get(text[-1], 1.0)
    return times * float(text.rstrip("kKMGT").replace(",", ""))


def _is_all_pairs(text: str, found: dict[str, float]) -> bool:
    return not _PAIR.sub("", text).strip(" \t,;|{}()[]%'\"") and not all(value.is_integer() for value in found.values())


_HEADER, _FOOTER = 12, 4  # bytes around the data of a record: its length, and checksums, which are not checked
_LONGEST_RECORD = 1 << 20  # bytes; scalars take a hundred, and images or graphs are not read
_LONGEST_TAG = 100
_EVENT_STEP, _EVENT_SUMMARY, _SUMMARY_VALUE, _TAG, _SIMPLE_VALUE, _TENSOR = 2, 5, 1, 1, 2, 8
_FLOATS, _CONTENT = 5, 4  # of a tensor


class Scalar(NamedTuple):
    """One value of a metric."""

    tag: str
    step: int
    value: float


def read_scalars(data: bytes) -> tuple[list[Scalar], int]:
    """Return the scalars in whole records, and how many bytes these take; ValueError if the bytes are no such records."""
    scalars: list[Scalar] = []
    at = 0
    while len(data) - at >= _HEADER:
        (length,) = struct.unpack_from("<Q", data, at)
        if length > _LONGEST_RECORD:
            raise ValueError(f"a record of {length} bytes")
        end = at + _HEADER + length + _FOOTER
        if end > len(data):
            break
        scalars += _scalars(data[at + _HEADER : end - _FOOTER])
        at = end
    return scalars, at


def _scalars(event: bytes) -> Iterator[Scalar]:
    fields = list(_fields(event))
    step = next((value for number, value in fields if number == _EVENT_STEP and isinstance(value, int)), 0)
    for number, summary in fields:
        if number != _EVENT_SUMMARY or not isinstance(summary, bytes):
            continue
        for inner, value in _fields(summary):
            if inner != _SUMMARY_VALUE or not isinstance(value, bytes):
                continue
            parts = dict(_fields(value))
            tag, number_read = parts.get(_TAG), _number(parts)
            if isinstance(tag, bytes) and number_read is not None and math.isfinite(number_read) and step < 1 << 53:
                yield Scalar(printable(tag.decode("utf-8", "replace"))[:_LONGEST_TAG], step, number_read)


def _number(value: dict[int, int | bytes]) -> float | None:
    """Return a plain value, or that of a tensor with one float."""
    plain, tensor = value.get(_SIMPLE_VALUE), value.get(_TENSOR)
    if isinstance(tensor, bytes):
        parts = dict(_fields(tensor))
        plain = parts.get(_FLOATS, parts.get(_CONTENT))
    return float(struct.unpack("<f", plain)[0]) if isinstance(plain, bytes) and len(plain) == 4 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; fixed-size values as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field that is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that is too long or cut off")
