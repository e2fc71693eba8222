"""Read why a rank was ended from below Python in the last lines that it printed."""

from __future__ import annotations

import re
from collections.abc import Sequence

# `…/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [17,0,0], thread: [0,0,0] Assertion `…` failed.`
_KERNEL = re.compile(
    r"(?P<file>[\w.+-]{1,99}:\d{1,9}): (?P<kernel>[^:]{1,999}): block: \[[\d,]{1,40}\], thread: \[[\d,]{1,40}\] "
    r"(?P<what>Assertion `[^`]{1,300}` failed)"
)
_THROWN = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']{1,99})'")
_WHAT = re.compile(r"what\(\): {1,9}(?P<what>.{1,400})")
_OF_C = re.compile(r"(?:double free|corrupted size|malloc\(\): |free\(\): |.{0,99}Assertion `).{0,300}")
_ASSERTED = "CUDA error: device-side assert triggered"


def kernel_assertion(words: Sequence[str]) -> str:
    """Return `Assertion `i < n` failed in indexSelectLargeIndex (Indexing.cu:1553)`; "" if no kernel asserted."""
    found = next((match for match in map(_KERNEL.search, words) if match), None)
    if found is None:
        return ""
    kernel = found["kernel"].partition("<")[0].rpartition("::")[2].partition("(")[0].rpartition(" ")[2]
    return f"{found['what']} in {kernel} ({found['file']})"


def end_of(words: Sequence[str]) -> str:
    """Return what ended the program: the assertion of a kernel, a C++ exception or an error of the C library; "" if unknown."""
    if asserted := kernel_assertion(words):
        return f"{_ASSERTED}: {asserted}"
    thrown = next((match["type"] for match in map(_THROWN.search, words) if match), "")
    what = next((match["what"].strip() for match in map(_WHAT.search, words) if match), "")
    if thrown or what:
        return f"{thrown.rpartition('::')[2]}: {what}".strip(": ")
    return next((match[0] for match in map(_OF_C.search, words) if match), "")


def with_assertion(message: str, words: Sequence[str]) -> str:
    """Return the message of an exception of CUDA with the assertion of the kernel in its first line."""
    asserted = kernel_assertion(words)
    if _ASSERTED not in message or not asserted:
        return message
    return message.replace(_ASSERTED, f"{_ASSERTED}: {asserted}", 1)
