"""Read a script for sbatch: its directives, and the program that srun or torchrun starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from compose_sim.core.request.job_files import JobFile
from compose_sim.plugins.job_files.core.imports.draft import Draft, template_hint
from compose_sim.plugins.job_files.core.imports.launch import (
    Cluster,
    calls_of_call,
    take_gpus,
    take_program,
    take_variables,
)
from compose_sim.plugins.job_files.core.imports.pods import NAMED_HERE
from compose_sim.plugins.job_files.core.imports.shell import Call, Shell

_TIME = re.compile(r"(\d{1,6}-)?\d{1,6}(:\d{1,2}){0,2}|UNLIMITED|INFINITE|-1", re.IGNORECASE)
_HEADER = re.compile(r"(?:[ \t]*(?:#.*)?\n)*(?:#.*)?")  # sbatch reads directives up to the first command
_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_NO_DIRECTIVE = re.compile(
    r"^[ \t]{0,40}(?:#{1,9}[ \t]{1,40}#?|##)SBATCH[ \t].{0,200}|^[ \t]{1,40}#SBATCH[ \t].{0,200}", re.MULTILINE
)
SLURM_STEP = "SLURM_STEP_ID"  # for which node/agent/launchers.py sets the other variables of srun
_SHORT = {
    **{"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "G": "gpus", "J": "job-name", "p": "partition"},
    **{"A": "account", "o": "output", "e": "error", "C": "constraint", "w": "nodelist", "x": "exclude", "q": "qos"},
}
_RETRIES = re.compile(r"\{0\.\.(\d{1,4})\}")
_MEMORY = re.compile(r"([0-9]{1,12})([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
# Options of srun without a value.
_SWITCHES = {
    *("-u", "-l", "-K", "-Q", "-v", "-s", "-O", "-E", "--unbuffered", "--label", "--overlap", "--exclusive", "--pty"),
    *("--exact", "--kill-on-bad-exit", "--verbose", "--quiet", "--oversubscribe", "--overcommit", "--mpi"),
    *("--container-mount-home", "--container-readonly", "--container-remap-root", "--container-writable"),
}


def directives_of(text: str) -> list[re.Match[str]]:
    """Return the directives of a script; none if it is no script for sbatch."""
    return [*_DIRECTIVE.finditer(text, 0, _end_of_header(text))]


def _end_of_header(text: str) -> int:
    header = _HEADER.match(text)
    return header.end() if header else 0


@dataclass(slots=True)
class _Options:
    """The options of all directives, which records those that were read."""

    written: list[tuple[str, str, int]] = field(default_factory=list)  # name, value and line; the last one counts
    used: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Return whether an option is given."""
        return any(name == each for each, _, _ in self.written)

    def peek(self, name: str) -> tuple[str, int]:
        """Return the value and the line of an option, or nothing and line 1, without counting it as read."""
        return next(((value, line) for each, value, line in reversed(self.written) if each == name), ("", 1))

    def get(self, name: str) -> tuple[str, int]:
        """Return the value and the line of an option, or nothing and line 1."""
        self.used.add(name)
        return self.peek(name)

    def settle(self, draft: Draft) -> None:
        """Note every option that no note is about."""
        said = {note.key for note in draft.notes}
        for name, _, line in self.written:
            if line != (counts := self.peek(name)[1]):
                draft.note("ignored", f"--{name}", line, f"line {counts} counts")
            elif f"--{name}" not in said:
                draft.settle(f"--{name}", line, is_read=name in self.used, reason=_REASONS.get(name, ""))


def read_sbatch(draft: Draft, variables: Mapping[str, str]) -> JobFile:
    """Return what a script for sbatch asks for; raise SpecError, with the line, for what cannot be honored."""
    text = draft.text
    given = _Options()
    for match in directives_of(text):
        if match[1].split()[:1] in (["hetjob"], ["packjob"]):
            line = text.count("\n", 0, match.start()) + 1
            raise draft.error(line, "a heterogeneous job has several kinds of nodes, and here all nodes are equal")
        _read_options(draft, match[1], text.count("\n", 0, match.start()) + 1, given)
    nodes, tasks, gpus, gpus_line = _layout(draft, given)
    known = {
        **{"SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NTASKS": str(nodes * tasks)},
        **{"SLURM_NPROCS": str(nodes * tasks), "SLURM_NTASKS_PER_NODE": str(tasks)},
        **({"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_GPUS_PER_NODE": str(gpus)} if gpus else {}),
        **({"SLURM_CPUS_PER_TASK": given.peek("cpus-per-task")[0]} if given.has("cpus-per-task") else {}),
        **({"SLURM_JOB_NAME": given.peek("job-name")[0]} if given.has("job-name") else {}),
    }
    shell = Shell(variables={**variables, **known}, positional=["sbatch"], has_arguments=True)
    started = [*shell.calls(text)]
    behind_srun = [_without_srun(draft, call, nodes, tasks) for call in started]
    calls = [each for call in behind_srun if call.words for each in calls_of_call(call, shell)]
    cluster = Cluster(nodes=nodes, gpus=gpus, ranks=max(1, gpus), tasks=tasks, starts_once=True)
    launched = take_program(draft, calls, cluster, key="the script", line=1)
    step = next((call for call in started if call.words[:1] == ("srun",)), None)
    if step and launched.launcher in ("python", "command"):
        draft.values.setdefault("env", {})[SLURM_STEP] = "0"
        draft.lines.setdefault("env", step.line)
        draft.note(
            "changed",
            "srun",
            step.line,
            "ranks get SLURM_PROCID, NTASKS, LOCALID and NODEID, and also RANK and WORLD_SIZE",
        )
    for match in _NO_DIRECTIVE.finditer(text, 0, _end_of_header(text)):
        line = text.count("\n", 0, match.start()) + 1
        draft.note("ignored", match[0].strip(), line, "sbatch reads it as a comment: a directive begins with #SBATCH")
    take_variables(draft, shell.exported, key="export")
    if given.has("exclusive") and not gpus_line and launched.launcher != "command":
        _, line = given.get("exclusive")
        draft.note(
            "taken", "--exclusive", line, "the GPUs of whole nodes, whose number is not in the file: one per rank"
        )
    else:
        option = next((f"--{name}" for name in _GPU_OPTIONS if name in given.used), "GPUs")
        take_gpus(draft, gpus, option, gpus_line or 1)
    for call in started:
        if call.words[0] == "for" and (retries := _RETRIES.fullmatch(call.words[-1])):
            draft.take("max_restarts", int(retries[1]), " ".join(call.words), call.line)
    given.settle(draft)
    return draft.finished("sbatch script")


def _read_options(draft: Draft, text: str, line: int, given: _Options) -> None:
    """Add the options of one directive."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise draft.error(line, f"#SBATCH: {error}") from None
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        else:
            name, equals, value = _SHORT.get(word[1:2], word[1:2]), word[2:], word[2:].removeprefix("=")
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        given.written.append((name, value, line))


def _layout(draft: Draft, given: _Options) -> tuple[int, int, int, int]:
    """Take nodes and limits; return nodes, tasks per node and GPUs per node with their line."""

    def number(name: str) -> int:
        value, line = given.get(name)
        if given.has(name) and (not value.isdecimal() or len(value) > 6):
            raise draft.error(line, f"--{name}: '{value:.40}' is not a whole number")
        return int(value or 0)

    text, nodes_line = given.get("nodes")
    least, _, most = text.partition("-")
    if given.has("nodes") and not (least.isdecimal() and int(least) > 0):
        raise draft.error(nodes_line, f"--nodes: '{least:.40}' is not a number of nodes", hint=template_hint(least))
    nodes = int(least or 1)
    tasks = number("ntasks-per-node")
    if not tasks and (total := number("ntasks")):
        nodes = nodes if given.has("nodes") else total
        tasks = -(-total // nodes)
    tasks = tasks or 1
    draft.take("nodes", nodes, "--nodes", nodes_line)
    if most.isdecimal() and int(most) > nodes:
        draft.note("changed", "--nodes", nodes_line, f"{nodes} nodes, the least of the range")
    cpus = number("cpus-per-task")
    if cpus:
        draft.take("cpus", cpus * tasks, "--cpus-per-task", given.peek("cpus-per-task")[1])
    gpus, gpus_line = _gpus(draft, given, nodes, tasks)
    _take_memory(draft, given, cpus * tasks, gpus)
    time, time_line = given.get("time")
    if given.has("time") and not _TIME.fullmatch(time):
        raise draft.error(time_line, f"--time: '{time:.40}' is not a time such as 1-12:00:00")
    if seconds := _seconds(time):
        draft.take("timeout", seconds, "--time", time_line, said=f"timeout {seconds}s")
    return nodes, tasks, gpus, gpus_line


_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_REASONS = {
    **dict.fromkeys(("output", "error"), "composesim logs shows the output of each rank"),
    **dict.fromkeys(
        ("partition", "account", "qos", "constraint", "nodelist", "exclude", "reservation"), "there is one machine"
    ),
    "job-name": NAMED_HERE,
    "exclusive": "nodes share this machine",
    "requeue": "a failed run is not submitted again: --max-restarts",
}


def _gpus(draft: Draft, given: _Options, nodes: int, tasks: int) -> tuple[int, int]:
    """Return the GPUs per node, and the line of the option; 0 if there is none."""
    for name in _GPU_OPTIONS:
        value, line = given.peek(name)
        entries = [
            entry.removeprefix("gpu").removeprefix(":")
            for entry in value.split(",")
            if name != "gres" or entry.startswith("gpu")
        ]
        if not value or not entries:
            continue
        given.get(name)
        count = entries[0].rpartition(":")[2].partition("(")[0]
        number = int(count) if count.isdecimal() else 1
        if name == "gpus-per-task":
            number *= tasks
        elif name == "gpus":
            number = -(-number // nodes)
        return number, line
    return 0, 0


def _take_memory(draft: Draft, given: _Options, cpus: int, gpus: int) -> None:
    for name, factor in (("mem", 1), ("mem-per-cpu", max(1, cpus)), ("mem-per-gpu", max(1, gpus))):
        value, line = given.get(name)
        if not value:
            continue
        match = _MEMORY.fullmatch(value)
        if not match:
            raise draft.error(line, f"--{name}: '{value:.40}' is not a size such as 64G")
        size = int(match[1]) * _UNITS[match[2].upper()] * factor
        if size:  # 0 is all memory of the node
            draft.take(
                "memory", size, f"--{name}", line, said=f"memory {value}" + (f" × {factor}" if factor > 1 else "")
            )


def _seconds(text: str) -> int:
    """Return the seconds of minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) if part.isdecimal() else 0 for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds if days.isdecimal() or not dash else 0


def _without_srun(draft: Draft, call: Call, nodes: int, tasks: int) -> Call:
    """Return a call without srun and its options; take the image of a container, nodes and tasks from them."""
    if not call.words or call.words[0] != "srun":
        return call
    words, options, counts = [*call.words[1:]], list[str](), dict[str, int]()
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        attached = option[:1] != "-" or (option[:2] != "--" and len(option) > 2)
        if (
            not (equals or attached or option in _SWITCHES or option.startswith("--no-"))
            and words[:1]
            and words[0][:1] != "-"
        ):
            value = words.pop(0)
        name = option[2:] if option.startswith("--") else _SHORT.get(option[1:2], "")
        number = value or option[2:]
        counts[name] = int(number) if number.isdecimal() and len(number) < 7 else 0
        if name not in ("nodes", "ntasks", "ntasks-per-node"):
            options.append(option)
        if option == "--container-image" and not value.startswith(("/", ".")):
            image = value.removeprefix("docker://").replace("#", "/")
            draft.take("image", image, "srun --container-image", call.line)
    for name in counts:
        if name in ("nodes", "ntasks", "ntasks-per-node"):
            draft.settle(f"srun --{name}", call.line, is_read=bool(counts[name]), reason="is not a number")
    if options:
        draft.note("ignored", f"srun {' '.join(options)}", call.line, "ranks start without srun")
    if "nodelist" not in counts:  # else each of several steps runs on a part of the nodes
        total = counts.get("ntasks", 0)
        nodes = min(counts.get("nodes") or (min(nodes, total) if total else nodes), total or nodes)
        tasks = counts.get("ntasks-per-node") or (-(-total // nodes) if total else tasks)
    return Call(tuple(words), call.line, call.variables, (nodes, tasks))
