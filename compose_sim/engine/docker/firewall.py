"""Close this machine to the nodes of a run, and open it again.

A short-lived helper container in the daemon's network namespace does that, so that the user need not be root; if we are root in
that namespace, it takes no container.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from compose_sim.core.network.host_firewall import render_firewall
from compose_sim.core.plan.model import Plan
from compose_sim.engine.docker import daemon
from compose_sim.engine.docker.network import run_helper
from compose_sim.engine.subprocesses import output_of
from compose_sim.errors import CommandError

_NO_HELPER = (125, 126, 127)  # from `docker run`: no helper can run on this machine, so none has installed rules
_FLAGS = ("--network", "host")


def close_host(plan: Plan, *, live: Collection[str]) -> str:
    """
    Install the rules, before there is a node that could use their absence; return why that was impossible, "" if it was not.

    `live` are the runs that have a network: what others have left is removed.
    """
    if not plan.closes_host:
        return ""
    try:
        _run(render_firewall(plan.run, plan.subnet, now=time.monotonic(), live=live))
    except CommandError as error:
        return (
            "nodes can reach the services of this machine and the metadata address of a cloud: "
            f"{error.evidence.splitlines()[-1] if error.evidence else error.message}. Try: composesim up --network isolated …"
        )
    return ""


def open_host(run: str = "", *, live: Collection[str] | None = None) -> None:
    """Remove the rules of a run, if there are any, and those of runs that are not `live`."""
    try:
        _run(render_firewall(run, None, now=time.monotonic(), live=live))
    except CommandError as error:
        if error.status not in _NO_HELPER:
            raise


def _run(script: str) -> None:
    if daemon.shares_our_network():
        output_of(["sh", "-s"], stdin=script.encode())
    else:
        run_helper(script, *_FLAGS)
