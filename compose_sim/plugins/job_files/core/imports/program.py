"""Find the training program among the commands of a job, and turn it into a script or a module with its number of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

from compose_sim.core.request.field_types import check_environment
from compose_sim.core.units import format_count
from compose_sim.plugins.job_files.core.exports.job import STORE_PORT
from compose_sim.plugins.job_files.core.imports.draft import Draft
from compose_sim.plugins.job_files.core.imports.launch import NO_EFFECT, Launched, inner_script, read_launch
from compose_sim.plugins.job_files.core.imports.shell import UNKNOWN, Call, Shell, without_marks

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
_HARDWARE = re.compile(r"\w+_SOCKET_IFNAME|NCCL_(IB|NET|CROSS_NIC|TOPO|SOCKET|P2P|ALGO|PROTO)\w*|(UCX|FI|OMPI|OFI)_\w+")
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
