"""Define faults of single ranks. The agent of the node that has the rank in the current round executes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, FaultKind, FaultOption, RunSnapshot, require_running
from compose_sim.errors import SpecError

if TYPE_CHECKING:
    from compose_sim.node.shared.fault_note import CommandName


def _kind(
    name: str,
    text: str,
    summary: str,
    command: CommandName,
    *,
    lasts: bool = False,
    options: Mapping[str, FaultOption] | None = None,
    **values: Any,
) -> FaultKind:
    """Return a kind that has the agent execute a command on a rank. The rank survives it only if the fault lasts."""
    known = options or {}

    def effect(fault: Fault, run: RunSnapshot) -> Effect:
        given = {key: fault.options.get(key, option.default) for key, option in known.items()}
        node = _node_of(fault, run)
        apply, revert = (
            AgentCommand(node=node, name=command, values={"rank": fault.rank, **values, **given}, on=on)
            for on in (True, False)
        )
        return Effect(
            fault=fault,
            text=f"rank {fault.rank} on {node} {text.format(**given)}",
            apply=(apply,),
            revert=(revert,) if lasts else (),
            loses=() if lasts else (node,),
        )

    return FaultKind(name=name, summary=summary, effect=effect, target="rank", options=known, lasts=lasts)


def _node_of(fault: Fault, run: RunSnapshot) -> str:
    node = run.ranks.get(-1 if fault.rank is None else fault.rank)
    if node is None:
        current = f"ranks 0 to {max(run.ranks)}" if run.ranks else "no ranks"
        raise SpecError(
            f"rank {fault.rank} is not running: the current round of '{run.plan.run}' has {current}",
            hint=f"composesim ps --run {run.plan.run}",
        )
    require_running((node,), run)
    return node


def _exit_code(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 256):
        raise ValueError(f"'{text}' is not an exit code (0 to 255)")
    return int(text)


_CODE = {"code": FaultOption(parse=_exit_code, metavar="N", default=1, help="Exit code.")}
_AT_ITS_LINE = "at the line that its main thread is executing."
_SIGNALS = {  # name: signal, text, summary
    "rank-segfault": ("SEGV", "crashes", "Crash a rank with SIGSEGV, as a bug in C code does."),
    "rank-abort": ("ABRT", "aborts", "Abort a rank with SIGABRT, as a failed C++ assertion or NCCL's watchdog does."),
    "rank-kill": ("KILL", "killed", "Kill one rank with SIGKILL; its node stays up."),
    "rank-term": ("TERM", "terminated", "Terminate one rank with SIGTERM, which the script may catch."),
    "rank-interrupt": ("INT", "interrupted", "Interrupt one rank with SIGINT (KeyboardInterrupt)."),
    "rank-stop": ("STOP", "stopped", "Stop one rank with SIGSTOP; its connections stay open."),
}

KINDS = (
    _kind(
        "rank-raise",
        "raises an exception",
        f"Raise an exception in a rank {_AT_ITS_LINE}",
        "rank_fault",
        action="raise",
    ),
    _kind(
        "rank-exit",
        "exits with status {code}",
        "Exit a rank at once with a code, without exception or clean-up.",
        "rank_fault",
        options=_CODE,
        action="exit",
    ),
    *(
        _kind(name, f"{text} (SIG{signal})", summary, "rank_signal", lasts=signal == "STOP", signal=signal)
        for name, (signal, text, summary) in _SIGNALS.items()
    ),
    _kind("rank-hang", "hangs", f"Hang a rank {_AT_ITS_LINE}", "rank_fault", lasts=True, action="hang"),
    _kind(
        "rank-lock-gil",
        "holds the GIL",
        "Hang a rank while it holds the GIL, as a C extension can.",
        "rank_fault",
        lasts=True,
        action="lock-gil",
    ),
    _kind(
        "flip-bits",
        "computes with flipped bits",
        "Flip bits in what layers of a rank compute, now and then, as a faulty core does.",
        "rank_fault",
        lasts=True,
        action="flip-bits",
    ),
    _kind(
        "rank-files-full",
        "cannot open files",
        "Prevent a rank from opening files and sockets (EMFILE).",
        "rank_files_full",
        lasts=True,
    ),
)
