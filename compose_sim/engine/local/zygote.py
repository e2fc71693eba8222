"""How does composesim have the processes of a local run started? By one short-lived process, whose handle this is (zygote_main.py)."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compose_sim.errors import EngineError

_PROGRAM = Path(__file__).with_name("zygote_main.py")


class Zygote:
    """Starts processes, each in a session of its own; when it leaves, they become children of composesim."""

    def __init__(self, python: str, *, folder: Path, working_directory: str, environment: Mapping[str, str]) -> None:
        """`folder` is the run's: outputs go to its logs. `working_directory` is the processes'."""
        self._folder, self._working_directory = folder, working_directory
        with output_file(folder, "zygote").open("w") as words:
            try:
                self._process = subprocess.Popen(
                    [python, "-u", str(_PROGRAM)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=words,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for composesim, which knows what to stop
                )
            except OSError as error:
                raise EngineError(
                    f"'{python}' cannot be run: {error.strerror}", hint="composesim up --python PATH …"
                ) from None

    def import_torch(self) -> None:
        """Begin to import torch, once for all nodes whose starters are forked from now on; returns at once."""
        self._send({"warm": str(self._folder / "node")})

    def start(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], *, program: Sequence[str] | None = None
    ) -> int:
        """Start a node's process; its process id. It ends with 127 where there is no such program or working directory.

        With `program`, the words after `python`, it gets a starter of ranks that has imported torch already.
        """
        output = str(output_file(self._folder, name))
        request: dict[str, Any] = {
            "argv": argv,
            "environment": environment,
            "folder": self._working_directory,
            "output": output,
        }
        request["program"] = program
        return int(self._ask(request)["pid"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, as the answer that does not come will tell
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._send(request)
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(
                "the process that starts the nodes has died",
                evidence=output_file(self._folder, "zygote").read_text(errors="replace")[-2000:],
                hint="composesim doctor",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def output_file(folder: Path, name: str) -> Path:
    """Where the first process of a node writes what it says itself; its ranks have logs of their own."""
    return folder / "logs" / f"{name}.out"
