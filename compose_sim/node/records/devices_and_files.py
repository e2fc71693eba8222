"""The devices, files and environment variables that a script uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .record import Place, Record

FileOp = Literal["read", "write", "update", "append", "create", "rename", "await", "written", "miss", "mkdir", "isdir"]


@dataclass(frozen=True)
class FileUse(Record, observers="collectives files horovod models optimizers paddle"):
    """The script opens, renames, saves or waits for one of its files, or makes a folder."""

    # "create" fails if the file exists; "await" waits until it does; "written" follows a torch.save; "miss" asks, and it does not;
    # "mkdir" makes a folder, and "isdir" asks for one that exists
    op: FileOp
    path: str  # without symbolic links
    private: bool = False  # whether every machine has a separate folder there, like /tmp
    to: str | None = None  # of a rename: the new name
    to_private: bool = False
    polls: bool = False  # whether that source file waits in a loop until files exist
    sync: int = 0  # synchronizations so far
    steps: int = 0  # optimizer steps so far
    content: int = 0  # a hash of the tensors that were saved; in `check` only
    at: Place | None = None

    @property
    def makes(self) -> bool:
        """Whether the script makes or replaces a file."""
        return self.op in ("write", "create", "rename", "written")

    @property
    def changed(self) -> tuple[str, ...]:
        """The files that this changes."""
        is_change = self.makes or self.op in ("update", "append")
        return tuple(filter(None, (self.path, self.to))) if is_change else ()


@dataclass(frozen=True)
class DeviceChosen(Record, observers="devices"):
    """The script chooses a GPU."""

    device: int
    how: str  # the call
    at: Place | None = None


@dataclass(frozen=True)
class VariableSet(Record, observers="files"):
    """The script sets a variable that launchers set."""

    name: str
    value: str
    changes: bool = False  # whether it had another value
    written: bool = False  # whether the value is a literal in that line
    at: Place | None = None


@dataclass(frozen=True)
class TrainerLibraries(Record, observers="groups"):
    """At the end: libraries were imported that report metrics by themselves."""

    names: tuple[str, ...]
    asks_for_node: bool = False  # whether the user's code mentions the local rank or similar
