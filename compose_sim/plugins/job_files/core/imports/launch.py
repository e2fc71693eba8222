"""Find the program that a command starts on every rank, behind torchrun, accelerate, deepspeed, mpirun, srun or python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

_PYTHON = re.compile(r"python[0-9.]*")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_SHELLS = ("bash", "sh", "dash", "zsh")
# Options of launchers that have no value.
_SWITCHES = {
    *(
        "--standalone",
        "--use-env",
        "--no-python",
        "--run-path",
        "--multi-gpu",
        "--cpu",
        "--use-fsdp",
        "--use-deepspeed",
    ),
    *("--tpu", "--debug", "--quiet", "-q", "--use-megatron-lm", "--force", "--no-local-rank", "--save-pid", "--no-ssh"),
}
# Commands that a run does not miss.
NO_EFFECT = {
    *(":", "[", "[[", "break", "case", "command", "continue", "date", "declare", "echo", "esac", "exit", "for"),
    *("function", "grep", "hostname", "local", "ls", "nvidia-smi", "printf", "read", "return", "scontrol", "set"),
    *("shift", "sleep", "test", "true", "type", "unset", "wait", "which"),
}
# Commands whose arguments may name a launcher that they do not start.
_NO_LAUNCHERS = NO_EFFECT | {
    *(".", "cat", "cd", "chmod", "conda", "cp", "curl", "git", "ln", "mamba", "mkdir", "module", "mv", "pip", "pip3"),
    *("rm", "rsync", "sed", "source", "tar", "tee", "touch", "trap", "ulimit", "wget"),
}
_TRAINS = re.compile(r"train|tune|main", re.IGNORECASE)
# Modules and programs that prepare a job.
_NOT_TRAINING = ("pip", "venv", "virtualenv", "http.server", "ensurepip", "zipfile", "json.tool")
_OF_TORCHRUN = {"--nnodes": "nodes", "--nproc-per-node": "nproc", "--max-restarts": "restarts", "--master-port": "port"}
_OF_DEEPSPEED = {"--num-nodes": "nodes", "--num-gpus": "nproc", "--master-port": "port"}
_OF_ACCELERATE = {"--num-machines": "nodes", "--num-processes": "ranks", "--main-process-port": "port"}
_OF_FABRIC = {"--num-nodes": "nodes", "--devices": "nproc", "--main-port": "port"}
_OF_COMPOSER = {"--nproc": "nproc", "-n": "nproc", "--world-size": "ranks", "--master-port": "port"}
_NAMES = {
    "composer": _OF_COMPOSER,
    "fabric": _OF_FABRIC,
    "torchrun": _OF_TORCHRUN,
    "deepspeed": _OF_DEEPSPEED,
    "accelerate": _OF_ACCELERATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a command starts."""

    launcher: (
        str  # torchrun, accelerate, composer, deepspeed, fabric, mpirun, python; or command, which is no Python program
    )
    program: tuple[str, ...]  # `train.py --epochs 3`, without `-m`
    is_module: bool = False
    options: dict[str, str] = field(
        default_factory=dict
    )  # nodes, nproc, ranks, restarts and port, as they were written
    written: dict[str, str] = field(default_factory=dict)  # what of `options` -> the option: `--nproc-per-node`
    left_out: tuple[str, ...] = ()  # other options of the launcher
    wrapper: tuple[str, ...] = ()  # what starts the launcher, such as `apptainer exec image.sif`

    @property
    def fitness(self) -> tuple[int, bool]:
        """Return how likely this is the training program of a script with several commands."""
        return {"command": 0, "python": 1}.get(self.launcher, 2), bool(_TRAINS.search(self.program[0]))


def inner_script(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the script in `bash -c SCRIPT NAME ARGS…`, and what follows; None if the words start no shell with a script."""
    for index, word in enumerate(words[:-2]):
        if PurePosixPath(word).name in _SHELLS:
            options = words[index + 1 :]
            count = next((n for n, each in enumerate(options) if not each.startswith("-")), len(options))
            if any("c" in each for each in options[:count] if not each.startswith("--")) and count < len(options):
                return options[count], [*options[count + 1 :]]
    return None


def read_launch(words: Sequence[str]) -> Launched | None:
    """Return what a command starts on the ranks: the first launcher in it, else Python, else None."""
    by_mpi = _launch_of_mpi(words)
    if not words or words[0] in _NO_LAUNCHERS:
        return None
    for index, word in enumerate(words):
        name, rest = PurePosixPath(word).name, words[index + 1 :]
        if name in ("install", "build"):  # such as `docker build -t deepspeed .`
            return None
        if name == "torchrun" or (name in ("composer", "deepspeed") and rest):
            launched = _of_launcher(name, rest)
        elif (name, *rest[:1]) in (("accelerate", "launch"), ("fabric", "run")):
            launched = _of_launcher(name, rest[1:])
        elif _PYTHON.fullmatch(name):
            launched = _of_python(word, rest)
        elif word.endswith(".py") and index == 0:
            launched = Launched(launcher="python", program=tuple(words))
        else:
            continue
        if launched and by_mpi and launched.launcher == "python":
            return replace(by_mpi, program=launched.program, is_module=launched.is_module, wrapper=launched.wrapper)
        return launched and replace(launched, wrapper=(*words[:index], *launched.wrapper))
    return None


def _of_python(python: str, words: Sequence[str]) -> Launched | None:
    rest = [*words]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    own = tuple(words[: len(words) - len(rest)])  # options of Python
    wrapper = (python, *own) if own else ()
    if rest[:1] == ["-m"] and len(rest) > 1:
        if rest[1] in _MODULES:
            launched = _of_launcher(_MODULES[rest[1]], rest[2:])
            return launched and replace(launched, wrapper=wrapper)
        if rest[1] in _NOT_TRAINING:
            return None
        return Launched(launcher="python", program=tuple(rest[1:]), is_module=True, wrapper=wrapper)
    if not rest or rest[0] in ("-m", "-c", "-"):
        return None
    return Launched(launcher="python", program=tuple(rest), wrapper=wrapper)


def _of_launcher(launcher: str, words: Sequence[str]) -> Launched | None:
    """Separate the options of a launcher from the program behind them."""
    known, options, written_as, left_out, rest = _NAMES[launcher], dict[str, str](), dict[str, str](), [], [*words]
    is_module = False
    while rest and rest[0].startswith("-"):
        written, equals, value = rest.pop(0).partition("=")
        name = written if written in ("-m", "-q") else written.replace("_", "-")
        if name in ("-m", "--module"):
            is_module = True
            rest[:0] = [value] if equals else []
            if launcher != "accelerate":
                break
            continue
        takes_value = not equals and name not in _SWITCHES and len(rest) > 1 and not rest[0].startswith("-")
        if takes_value and not rest[0].endswith(".py"):
            value = rest.pop(0)
        if name in known:
            options[known[name]] = value
            written_as[known[name]] = name
        else:
            left_out.append(written)
    if launcher == "deepspeed":
        is_module = is_module or "--module" in left_out
    if not rest:
        return None
    if "--no-python" in left_out or "--no_python" in left_out:
        return Launched(launcher="command", program=tuple(rest))
    return Launched(
        launcher=launcher,
        program=tuple(rest),
        is_module=is_module,
        options=options,
        written=written_as,
        left_out=tuple(left_out),
    )


def _launch_of_mpi(words: Sequence[str]) -> Launched | None:
    """Return how mpirun or horovodrun starts Python, without the program; None for another command."""
    programs = [PurePosixPath(word).name for word in words]
    start = next((n for n, name in enumerate(programs) if name in ("mpirun", "mpiexec", "horovodrun")), None)
    end = next((n for n, name in enumerate(programs) if _PYTHON.fullmatch(name)), None)
    if start is None or end is None:
        return None
    own = words[start + 1 : end]
    option = next((word for word in own[:-1] if word in ("-np", "-n", "--np", "-c")), "")
    return Launched(
        launcher="mpirun",
        program=(),
        options={"ranks": own[own.index(option) + 1] if option else "1"},
        written={"ranks": option} if option else {},
        left_out=tuple(word for word in own if word.startswith("-") and word != option),
    )
