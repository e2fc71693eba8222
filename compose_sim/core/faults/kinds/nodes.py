"""Define faults of whole nodes: how they end or stop, and resources that they run out of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import (
    Action,
    AgentCommand,
    Effect,
    FaultKind,
    FaultOption,
    LimitCpus,
    Pause,
    RunSnapshot,
    Signal,
    Start,
    require_running,
)
from compose_sim.core.text import format_seconds, parse_seconds
from compose_sim.errors import SpecError


def _on_nodes(
    text: str,
    apply: Callable[..., Action],
    revert: Callable[..., Action] | None = None,
    *,
    loses: bool = True,
    check: Callable[[Fault, RunSnapshot], None] | None = None,
) -> Callable[[Fault, RunSnapshot], Effect]:
    """Return the effect of one action, and of one that reverts it, on each node of a fault."""

    def effect(fault: Fault, run: RunSnapshot) -> Effect:
        require_running(fault.nodes, run)
        if check:
            check(fault, run)
        return Effect(
            fault=fault,
            text=text.format(nodes=", ".join(fault.nodes), **fault.options),
            apply=tuple(apply(node=node) for node in fault.nodes),
            revert=tuple(revert(node=node) for node in fault.nodes) if revert else (),
            loses=fault.nodes if loses else (),
        )

    return effect


def _restart(fault: Fault, run: RunSnapshot) -> Effect:
    """Kill the nodes that are running, then start all of them."""
    kill = tuple(Signal(node=node, name="KILL") for node in fault.nodes if node in run.running)
    start = tuple(Start(node=node) for node in fault.nodes)
    return Effect(fault=fault, text=f"{', '.join(fault.nodes)} restarted", apply=kill + start, loses=fault.nodes)


def _preempt(fault: Fault, run: RunSnapshot) -> Effect:
    """Give the ranks the grace period between SIGTERM and SIGKILL, and bring the nodes back after `--for`, or once it is over."""
    grace_s = fault.options["grace"]
    for_s = grace_s if fault.for_s is None else fault.for_s
    if for_s < grace_s:
        raise SpecError(
            f"--for {format_seconds(for_s)} ends before --grace {format_seconds(grace_s)}",
            hint="--for counts from SIGTERM: make it longer, or leave it out",
        )
    require_running(fault.nodes, run)
    allow = (AgentCommand(node=node, name="grace", values={"seconds": grace_s}) for node in fault.nodes)
    return Effect(
        fault=replace(fault, for_s=for_s),
        text=f"{', '.join(fault.nodes)} preempted (SIGTERM, {format_seconds(grace_s)} until SIGKILL)",
        apply=(*allow, *(Signal(node=node, name="TERM") for node in fault.nodes)),
        revert=tuple(Start(node=node) for node in fault.nodes),
        loses=fault.nodes,
    )


def _limit_cpus(fault: Fault, run: RunSnapshot) -> Effect:
    limited = partial(LimitCpus, cpus=fault.options["limit"])
    text = "{nodes} limited to {limit:g} CPUs"
    return _on_nodes(text, limited, partial(LimitCpus, cpus=None), loses=False)(fault, run)


def _cpus(text: str) -> float:
    cpus = float(text)
    if not 0.01 <= cpus <= 1024:  # Docker accepts no less than a hundredth
        raise ValueError(f"'{text}' is not a number of CPUs (0.01 to 1024)")
    return cpus


def _require_memory_limit(fault: Fault, run: RunSnapshot) -> None:
    for node in run.plan.nodes:
        if node.name in fault.nodes and not node.memory_bytes:
            raise SpecError(
                f"{node.name} has no memory limit, so this fault would exhaust the memory of the host",
                hint="composesim up --memory 1g …",
            )


def _require_scratch(_: Fault, run: RunSnapshot) -> None:
    if not run.plan.scratch_bytes:
        raise SpecError(
            "the nodes have no scratch disk, and the disk of the host is never filled",
            hint="composesim up --scratch 64m …",
        )


KINDS = (
    FaultKind(
        name="kill",
        summary="Kill a node at once, as when a machine loses power.",
        effect=_on_nodes("{nodes} killed", partial(Signal, name="KILL"), Start),
    ),
    FaultKind(
        name="term",
        summary="Shut a node down with SIGTERM, as when a spot machine is reclaimed.",
        effect=_on_nodes("{nodes} shut down (SIGTERM)", partial(Signal, name="TERM"), Start),
    ),
    FaultKind(
        name="preempt",
        summary="Give a node notice (SIGTERM), kill it after a grace period, and start it again.",
        effect=_preempt,
        options={
            "grace": FaultOption(
                parse=parse_seconds,
                metavar="TIME",
                default=30.0,
                help="Time between SIGTERM and SIGKILL; the node is back after it, or after --for.",
            )
        },
    ),
    FaultKind(
        name="stop",
        summary="Stop all processes of a node (SIGSTOP); its connections stay open.",
        effect=_on_nodes("{nodes} stopped", partial(Signal, name="STOP"), partial(Signal, name="CONT")),
    ),
    FaultKind(
        name="pause",
        summary="Freeze a node, as when its virtual machine is migrated.",
        effect=_on_nodes("{nodes} frozen", Pause, partial(Pause, on=False)),
    ),
    FaultKind(
        name="restart",
        summary="Kill a node and start it again at once, or start a node that was killed.",
        effect=_restart,
        lasts=False,
    ),
    FaultKind(
        name="cpu",
        summary="Limit the CPU of a node: a straggler.",
        effect=_limit_cpus,
        engines=("docker",),
        needs="cpu-quota",
        options={"limit": FaultOption(parse=_cpus, metavar="CPUS", help="CPUs that the node may use, such as 0.2.")},
    ),
    FaultKind(
        name="memory",
        summary="Fill a node's memory up to its --memory, until the kernel kills a rank (OOM).",
        effect=_on_nodes("{nodes} out of memory", partial(AgentCommand, name="memory"), check=_require_memory_limit),
        engines=("docker",),
        lasts=False,
    ),
    FaultKind(
        name="disk-full",
        summary="Fill a node's --scratch disk; the disk of the host is never filled.",
        effect=_on_nodes(
            "scratch disk of {nodes} full",
            partial(AgentCommand, name="disk_full"),
            partial(AgentCommand, name="disk_full", on=False),
            loses=False,
            check=_require_scratch,
        ),
        engines=("docker",),
    ),
    FaultKind(
        name="processes-full",
        summary="Use up the process limit of a node, so that it can start no process or thread.",
        effect=_on_nodes(
            "{nodes} cannot start processes",
            partial(AgentCommand, name="processes_full"),
            partial(AgentCommand, name="processes_full", on=False),
            loses=False,
        ),
        engines=("docker",),
    ),
)
