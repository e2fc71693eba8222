"""What can go wrong, and what does composesim say then?

    ComposesimError                     exit code
    ├── SpecError                       2   the request is wrong or cannot be met
    ├── EnvironmentMissingError         4   no engine, no image, no Python with torch
    ├── EngineError                     3   an engine failed at what it was told
    └── CommandError                    3   a program that an engine needs ended badly

Every error says what happened with the value quoted, shows the evidence, and ends with a command to type.
"""

from __future__ import annotations

from collections.abc import Sequence


class ComposesimError(Exception):
    """An expected failure: printed as three parts (message, evidence, hint), never as a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, evidence: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence
        self.hint = hint


class SpecError(ComposesimError):
    """The request is wrong, or cannot be met on this machine."""

    exit_code = 2


class EnvironmentMissingError(ComposesimError):
    """Something that must be there before a run starts is not: an engine, an image, a Python with torch."""

    exit_code = 4


class EngineError(ComposesimError):
    """An engine was reached and failed at what it was told to do."""

    exit_code = 3


class CommandError(EngineError):
    """A program ended with a status other than 0."""

    def __init__(self, argv: Sequence[str], status: int, output: str, *, hint: str = "") -> None:
        tail = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"'{' '.join(argv[:4])}' ended with status {status}", evidence=tail, hint=hint)
        self.argv = tuple(argv)
        self.status = status
        self.output = output
