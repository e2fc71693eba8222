"""Define the errors that composesim raises, and the exit code of each.

    ComposesimError                     exit code
    ├── SpecError                       2   the request is wrong or cannot be met
    ├── EnvironmentMissingError         4   no engine, no image, no Python with torch
    ├── RunError                        1   a function failed on a rank, or its run did not pass
    └── EngineError                     3   an engine failed
        └── CommandError                3   a program that an engine started exited with an error

A message says what happened and quotes the value; the evidence shows why; the hint is a command to type.
"""

from __future__ import annotations

from collections.abc import Sequence


class ComposesimError(Exception):
    """An expected failure. The command line prints the three parts, without a traceback of composesim."""

    exit_code = 1

    def __init__(self, message: str, *, evidence: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence
        self.hint = hint
        for note in (evidence, f"Try: {hint}" if hint else ""):
            if note:
                self.add_note(note)  # for Python, which prints notes below the message

    def to_dict(self) -> dict[str, object]:
        """Return the error as JSON values."""
        parts = {"message": self.message, "evidence": self.evidence, "hint": self.hint}
        return {**parts, "exit_code": self.exit_code}


class SpecError(ComposesimError):
    """The request is wrong, or cannot be met on this machine."""

    exit_code = 2


class EnvironmentMissingError(ComposesimError):
    """An engine, an image or a Python with torch is missing, so that the run cannot start."""

    exit_code = 4


class EngineError(ComposesimError):
    """An engine exists, but could not do what was requested."""

    exit_code = 3


class CommandError(EngineError):
    """A program exited with a status other than 0."""

    def __init__(self, argv: Sequence[str], status: int, output: str, *, hint: str = "") -> None:
        tail = "\n".join(output.strip().splitlines()[-12:])
        super().__init__(f"'{' '.join(argv[:4])}' exited with status {status}", evidence=tail, hint=hint)
        self.argv = tuple(argv)
        self.status = status
        self.output = output


class RunError(ComposesimError):
    """A function raised an exception on a rank, or the run did not pass for another reason, such as a hang."""

    def __init__(
        self, message: str, *, rank: int | None = None, node: str | None = None, traceback: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, evidence=traceback, hint=hint)
        self.rank = rank  # None if no single rank is the cause, as in a timeout
        self.node = node
        self.traceback = traceback  # of the rank's exception
