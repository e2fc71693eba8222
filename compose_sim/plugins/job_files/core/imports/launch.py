"""Find the program that a command starts on every rank, behind torchrun, accelerate, deepspeed, mpirun, srun or python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath

from compose_sim.core.request.field_types import check_environment
from compose_sim.core.text import format_count
from compose_sim.plugins.job_files.core.exports.job import STORE_PORT
from compose_sim.plugins.job_files.core.imports.draft import Draft
from compose_sim.plugins.job_files.core.imports.shell import UNKNOWN, Call, Shell, without_marks

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

    # torchrun, accelerate, composer, deepspeed, fabric, mpirun, python; or command, which is no Python program.
    launcher: str
    program: tuple[str, ...]  # `train.py --epochs 3`, without `-m`
    is_module: bool = False
    # Nodes, nproc, ranks, restarts and port, as they were written.
    options: dict[str, str] = field(default_factory=dict)
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


_RENDEZVOUS = (
    *(
        "rdzv",
        "master",
        "main-address",
        "main-process",
        "node-rank",
        "machine-rank",
        "hostfile",
        "standalone",
        "no-ssh",
    ),
)
_SET_HERE = re.compile(
    r"(PET|COMPOSESIM)_\w+|MASTER_(ADDR|PORT)|(LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|CUDA_VISIBLE_DEVICES|N?NODES"
)
_HARDWARE = re.compile(
    r"\w{1,60}_SOCKET_IFNAME|NCCL_(IB|NET|CROSS_NIC|TOPO|SOCKET|P2P|ALGO|PROTO)\w*|(UCX|FI|OMPI|OFI)_\w+"
)
_PATHS = re.compile(r"(LD_LIBRARY_|LIBRARY_|C)?PATH|HOME|CUDA_HOME|VIRTUAL_ENV|CONDA_\w+|TMPDIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a job file says about its nodes, apart from the command."""

    nodes: int
    gpus: int  # per node
    ranks: int | None = None  # per node, if torchrun's command line does not say
    tasks: int = 1  # processes per node that each run the command
    starts_once: bool = False  # whether a command without srun runs on the first node alone


def calls_of_words(words: tuple[str, ...], line: int, shell: Shell) -> list[Call]:
    """Return the commands that one command line starts: those of the script in `bash -c SCRIPT`, else itself."""
    inner = inner_script(words)
    if inner is None:
        return [Call(words, line)]
    nested = Shell(variables={**shell.variables}, positional=inner[1], exported=shell.exported, arrays=shell.arrays)
    return [deeper for call in nested.calls(inner[0], line) for deeper in calls_of_call(call, nested)]


def calls_of_call(call: Call, shell: Shell) -> list[Call]:
    """Return the commands that a call starts, each with the variables in front of it."""
    return [
        Call(each.words, each.line, {**call.variables, **each.variables}, call.nodes_and_tasks)
        for each in calls_of_words(call.words, call.line, shell)
    ]


def take_program(
    draft: Draft, calls: Iterable[Call], cluster: Cluster, *, key: str, line: int, whole: tuple[str, ...] = ()
) -> Launched:
    """
    Set script or module, arguments and ranks from the best of these calls; raise SpecError if none starts a program.

    A single command that is no Python program becomes the recipe `exec`, and so does a script without one that every node runs
    as a `whole`. Commands behind srun count before others.
    """
    calls = list(calls)
    launches = [(call, launched) for call in calls if (launched := read_launch(call.words))]
    programs = [call for call in calls if call.nodes_and_tasks] or calls
    if not launches and calls and (whole or len(programs) == 1):
        launches = [(programs[0], Launched(launcher="command", program=whole or programs[0].words))]
    if not launches and draft.has_program:
        launched = Launched(launcher="torchrun", program=())
        _take_options(draft, launched, cluster, line)
        return launched
    if not launches:
        raise draft.error(
            line,
            f"{key} starts neither torchrun nor a Python program"
            if calls
            else f"{key} names no program: that of the image would run",
            hint=f"name the script: composesim plan -f {draft.source} train.py",
        )
    call, launched = max(launches, key=lambda pair: (pair[1].fitness, bool(pair[0].nodes_and_tasks)))
    if UNKNOWN in PurePosixPath(launched.program[0]).name and not whole and not draft.has_program:
        raise draft.error(
            call.line,
            f"{key} gets the name of its program, '{without_marks(launched.program[0])}', when it is submitted",
            hint=f"name the script: composesim plan -f {draft.source} train.py",
        )
    for other in calls:
        if other is not call and launched.program != whole and other.words[0] not in NO_EFFECT:
            text = "only one program of a job runs here" if read_launch(other.words) else "is not run here"
            draft.note("ignored", _shortened(other.words), other.line, text)
        elif other.words[0] == "for" and len(other.words) > 4:
            draft.note("changed", _shortened(other.words), other.line, f"runs once, with '{other.words[3]}'")
    if launched.wrapper:
        draft.note("ignored", _shortened(launched.wrapper), call.line, "ranks start without it")
    if launched.launcher == "python" and any(("ray", "start") in pairwise(each.words) for each in calls):
        draft.take("recipe", "ray", key, call.line)
        cluster = replace(cluster, tasks=0)  # nodes of Ray have no ranks
    elif launched.launcher in ("python", "command"):
        cluster = _of_step(draft, call, cluster, key)
    _take_words(draft, launched, call.line, key)
    _take_options(draft, launched, cluster, call.line)
    take_variables(draft, {name: (value, call.line) for name, value in call.variables.items()})
    return launched


def _of_step(draft: Draft, call: Call, cluster: Cluster, key: str) -> Cluster:
    """Return the nodes and tasks that run a command which starts no ranks itself."""
    nodes, tasks = call.nodes_and_tasks or ((1, 1) if cluster.starts_once else (cluster.nodes, cluster.tasks))
    if nodes != cluster.nodes:
        why = "srun starts it there" if call.nodes_and_tasks else "without srun, a job runs it on its first node alone"
        draft.take("nodes", nodes, key, call.line, changed=f"of {format_count(cluster.nodes, 'node')}: {why}")
    return replace(cluster, nodes=nodes, tasks=tasks)


def _take_words(draft: Draft, launched: Launched, line: int, key: str) -> None:
    target, *arguments = [without_marks(word) for word in launched.program]
    if launched.launcher == "command":
        draft.take("recipe", "exec", key, line, changed="the command runs unchanged on every node, as it is not Python")
    elif launched.launcher in ("accelerate", "composer", "deepspeed", "fabric"):
        changed = f"ranks start without {launched.launcher}, which sets variables and reads a configuration of its own"
        draft.take("launcher", "warm", key, line, changed=changed)
        del draft.values["launcher"]  # it is the default
    draft.take("module" if launched.is_module else "script", target, key, line)
    if arguments:
        draft.take("args", arguments, key, line, said=f"args {_shortened(arguments)}")
    for word in launched.program:
        if UNKNOWN in word:
            draft.note(
                "changed",
                key,
                line,
                f"'{without_marks(word):.80}' has a value on the cluster only: it stays as text",
            )


def _take_options(draft: Draft, launched: Launched, cluster: Cluster, line: int) -> None:
    options, name = launched.options, launched.launcher
    keys = {what: f"{name} {option}" for what, option in launched.written.items()}
    least, _, most = options.get("nodes", "").partition(":")
    nodes = least if least == most else options.get("nodes", "")
    if re.fullmatch(r"[0-9]+:[0-9]+", nodes) and len(set(nodes.split(":"))) == 2:
        draft.take("elastic", nodes, keys["nodes"], line)
    elif nodes.isdecimal() and int(nodes) not in (0, cluster.nodes):
        text = f"the job has {format_count(cluster.nodes, 'node')}, and {name} starts on {nodes}: its number counts"
        draft.take("nodes", int(nodes), keys["nodes"], line, changed=text)
    nodes_here = draft.values.get("nodes", cluster.nodes)
    key = keys.get("nproc") or keys.get("ranks") or name
    ranks = _ranks(draft, options, cluster, nodes_here, name, key=key, line=line)
    if ranks and launched.launcher != "command":
        draft.take("nproc_per_node", ranks, key, line)
    if options.get("restarts", "").isdecimal():
        draft.take("max_restarts", int(options["restarts"]), keys["restarts"], line)
    port = options.get("port", "")
    if port.isdecimal() and int(port) != STORE_PORT and 1024 <= int(port) <= 65535:
        draft.take("master_port", int(port), keys["port"], line)
    said = {note.key for note in draft.notes}
    for what, key in keys.items():
        if key not in said:
            reason = f"'{without_marks(options[what]):.40}' has a value on the cluster only"
            draft.settle(key, line, is_read=options[what].replace(":", "").isdecimal(), reason=reason)
    for option in launched.left_out:
        known = any(part in option.replace("_", "-") for part in _RENDEZVOUS)
        text = "composesim is the rendezvous, and numbers the nodes" if known else "has no counterpart here"
        draft.note("ignored", f"{name} {option}", line, text)


def _ranks(
    draft: Draft, options: Mapping[str, str], cluster: Cluster, nodes: int, name: str, *, key: str, line: int
) -> int | None:
    """Return the ranks per node: those that the command names, else one per GPU if it asks for that, else the file's."""
    if name in ("python", "command"):
        return cluster.tasks
    nproc, total = options.get("nproc", ""), options.get("ranks", "")
    if nproc.isdecimal() and int(nproc):
        return int(nproc)
    if total.isdecimal() and int(total):
        if int(total) % nodes:
            raise draft.error(line, f"{total} ranks cannot be divided equally among {nodes} nodes")
        return int(total) // nodes
    if nproc or name in ("accelerate", "composer", "deepspeed", "fabric"):
        given = f"'{nproc:.40}' is" if nproc else "the default is"
        if cluster.gpus or nproc in ("cpu", "auto", "gpu"):
            return cluster.ranks or max(1, cluster.gpus)
        draft.note("changed", key, line, f"{given} known on the cluster only: 1 rank per node")
    return cluster.ranks


def take_variables(draft: Draft, variables: Mapping[str, tuple[str, int]], *, key: str = "env") -> None:
    """Add the variables of a command or a script, given as (value, line)."""
    for name, (value, line) in variables.items():
        take_variable(draft, name, value, key=f"{key} {name}", line=line)


def take_variable(draft: Draft, name: str, value: str, *, key: str, line: int) -> None:
    """Add a variable to those of the nodes; leave out one that means something on the cluster only."""
    try:
        check_environment({} if name.startswith("COMPOSESIM_") else {name: value})
    except ValueError as error:
        raise draft.error(line, f"{key}: {error}") from None
    own = f"env {name}"
    reason = next((text for pattern, text in _NOT_HERE if pattern.fullmatch(name)), "")
    if not reason and UNKNOWN in value:
        reason = f"has a value on the cluster only: --env {name}=VALUE"
    if reason:
        draft.note("ignored", key, line, f"{own}: {reason}")
        return
    variables = draft.values.setdefault("env", {})
    if variables.get(name, value) != value:
        draft.overrule(own, line)
    variables[name] = value
    draft.lines.setdefault("env", line)
    draft.note("taken", key, line, own)


_NOT_HERE = (
    (_SET_HERE, "composesim sets it"),
    (_HARDWARE, "names hardware of the cluster"),
    (_PATHS, "is a path on the cluster"),
)


def take_gpus(draft: Draft, count: int, key: str, line: int) -> None:
    """Set the GPUs of a node after its ranks are known: none, one per rank, or another number."""
    if not count:
        draft.values["gpus"] = "none"
        draft.lines["gpus"] = line
        draft.note("taken", key, line, "gpus none: the job asks for no GPU")
    elif count != draft.values.get("nproc_per_node", 1):
        draft.take("gpus_per_node", count, key, line)
    else:
        draft.note("taken", key, line, f"{format_count(count, 'GPU')} per node, one per rank")


def _shortened(words: Iterable[str]) -> str:
    text = " ".join(without_marks(" ".join(words)).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
