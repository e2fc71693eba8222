"""Start the processes of local runs through one process, the role `zygote` of `node/`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compose_sim.core.plan.node_roles import role_command
from compose_sim.engine.local.reaper import Init
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import EngineError


class Zygote:
    """Starts processes in separate sessions. When it exits, they become children of the init process."""

    def __init__(
        self,
        python: str,
        *,
        folder: Path,
        working_directory: str,
        environment: Mapping[str, str],
        is_kept: bool = False,
    ) -> None:
        """
        Write output to the logs in the run folder; `working_directory` is that of the processes.

        One that `is_kept` does not exit with the context of the first nodes.
        """
        self._folder, self._working_directory, self._is_kept = folder, working_directory, is_kept
        self._own_folder, self._has_torch = folder, False
        self.pid = 0  # known once something was handed over
        log = SafeFolder(folder).open_file("logs/zygote.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(log, "a") as errors:
            self.init = Init(
                [python, "-u", *role_command(str(folder.resolve()), "zygote")],
                environment=environment,
                errors=errors,
            )
        self._python, self._process = python, self.init.process

    def import_torch(self, program: Sequence[str]) -> None:
        """Start to import what `program` needs of torch, once for all nodes that are started with it; returns at once."""
        if self._has_torch:
            return
        self._has_torch = True
        self._send({"import_torch": program, "folder": self._working_directory})

    def write_to(self, folder: Path) -> None:
        """Write the output of the processes that are started from now on to the logs of this run."""
        self._folder = folder

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[None]:
        """Start processes that become children of the init process at the end of the context, although the zygote is kept."""
        if self._is_kept:
            self.pid = int(self._answer({"hand_over": "begin"})["pid"])
        yield
        if self._is_kept:
            self._answer({"hand_over": "end"})

    def start(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], *, program: Sequence[str] | None = None
    ) -> int:
        """Start a node's process, and return the process id. It exits with 127 if the command or working directory is missing.

        With `program`, the command line of the ranks after `python`, it gets a fork server that has imported torch already.
        """
        SafeFolder(self._folder).append(f"logs/{name}.out", "")  # created here, and opened by the zygote
        request = {
            "argv": argv,
            "environment": environment,
            "folder": self._working_directory,
            "output": str(self._folder / "logs" / f"{name}.out"),  # of this process; ranks have separate logs
            "program": program,
        }
        return int(self._answer(request)["pid"])

    def close(self) -> None:
        """Let it exit, and wait until it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with self._process.stdout as answers:
            answers.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, and the answer will be missing
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raise OSError if that is an error's number."""
        answer = self._ask(request)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._send(request)
        line = self._process.stdout.readline()
        if not line:
            if error := self.init.code(0, within_s=0):
                raise EngineError(
                    f"'{self._python}' cannot be run: {os.strerror(error)}", hint="composesim up --python PATH …"
                )
            raise EngineError(
                "the process that starts the nodes has died",
                evidence=SafeFolder(self._own_folder).read_text("logs/zygote.out")[-2000:],
                hint="composesim doctor",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer
