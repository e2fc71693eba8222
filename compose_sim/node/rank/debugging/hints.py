"""Say what helps against an exception of the script: another launcher, less memory, or no GPU."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from ...shared.frames import message_of
from .. import gpu_limits
from ..emulate import failures

# `while trying to connect to (master, 29501)`
_TARGET = re.compile(r"connect(?:ion)? to \(?(?P<host>[\w.-]{1,99})(?:, |:)(?P<port>\d{1,5})")


_LONGEST_CHAIN = 20


def hint_for(error: BaseException) -> str:
    """Return what helps; "" if nothing is known."""
    known = (_launcher, gpu_limits.explain, _master, _torchvision, _numpy, failures.way_out)
    return next(filter(None, (hint(error) for hint in known)), "")


def _launcher(error: BaseException) -> str:
    # The launcher env sets no run id. With one rank per node, it leaves it to the script to start more.
    started = "TORCHELASTIC_RUN_ID" in os.environ or os.environ.get("LOCAL_WORLD_SIZE", "1") != "1"
    by_spawn = type(error).__module__ == "torch.multiprocessing.spawn" and "init_process_group" in message_of(error)
    if not (started and by_spawn):
        return ""
    again = f"composesim up --launcher env --gpus-per-node {os.environ.get('LOCAL_WORLD_SIZE', '1')} …"
    return f"The ranks had already been started when the script started its own. Try: {again}"


def _master(error: BaseException) -> str:
    """Return how to place rank 0 at MASTER_ADDR, if the script looked there for more than the store of composesim."""
    target = _TARGET.search(message_of(error))
    master, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if os.environ.get("COMPOSESIM_ENGINE") or target is None or target["host"] != master or target["port"] == port:
        return ""
    if master.startswith("node-"):
        return ""
    return (
        f"Nothing listens at port {target['port']} of {master}: the store of composesim has a container of its own there, and rank 0 "
        "is on node-0. With composesim up --master node-0 …, MASTER_ADDR is the node of rank 0, as on most clusters."
    )


def _torchvision(error: BaseException) -> str:
    if not any("operator torchvision::" in message_of(each) for each in _chain(error)):
        return ""
    torch = getattr(sys.modules.get("torch"), "__version__", "")
    return (
        f"This torchvision was built for another torch than {torch}: the one on PyPI is for CUDA. Install it from the index that "
        "torch came from ('Get Started' on pytorch.org)."
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _numpy(error: BaseException) -> str:
    if "Numpy is not available" not in message_of(error):
        return ""
    return f"torch needs NumPy for this, as for collectives of objects. {_how_to_install('numpy')}"


def _how_to_install(name: str) -> str:
    if os.environ.get("COMPOSESIM_ENGINE"):  # without containers
        return f"The nodes run {sys.executable}. Try: {sys.executable} -m pip install {name}"
    return f"The nodes run {sys.executable} of their image. Try: composesim image build --requirements FILE"
