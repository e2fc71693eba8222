"""How does the real paddle.distributed.launch start a node's ranks? In this process, told its place by us, one process a round.

Arguments of the role `paddle-launch`: PARENT_PID CHANNEL_DESCRIPTOR paddle -- [-m] SCRIPT ARGS...

Paddle's launchers find each other through the one on the first node, which serves MASTER_ADDR:MASTER_PORT for this round. What they
would do about failures (`--max_restart`, etcd) is off: composesim stops the ranks of all nodes, and begins another round.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

from ...master.driver_api import UNREACHABLE
from ...shared import installed, process, roles
from ...shared.event_log import EventLog
from ...shared.starter_protocol import receive
from ...starters.popen_hook import receive_ranks, watch_ranks
from . import requirement

PORT_TAKEN, BROKEN = 94, 95
_PATIENCE_S, _LOOK_S = 60.0, 0.05
# Nodes that share an address would all try to serve it, each after up to 2 s of sleep: on this machine they take several.
_LOOPBACK, _MASTER_ON_LOOPBACK, _OTHER_ON_LOOPBACK = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# Paddle's ranks would look there for their store, which the launcher puts elsewhere.
_NOT_FOR_RANKS = ("MASTER_ADDR", "MASTER_PORT")
# These lead into a folder that is gone when the ranks run.
_DELETED = ("PADDLE_BACKUP_ENV_PATH", "PADDLE_LOG_DIR")
# Which of Paddle's own variables win over the options of its launcher, and so over the place that the master has given us.
_OUR_PLACE = re.compile(
    r"POD_IP|PADDLE_(MASTER|NNODES|NPROC_PER_NODE|RANK|TRAINER_ID|TRAINER_ENDPOINTS|JOB_ID|LOG_DIR|MAX_RESTART|ELASTIC_LEVEL|IPS|RUN_MODE)"
    r"|DISTRIBUTED_TRAINER_ENDPOINTS"
)


class CannotStart(Exception):
    """Why this node cannot start its ranks: an exit code, the cause in words, and a command to type next."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def tell(self) -> None:
        """On the node's output, and as the cause of the run."""
        hint = f"\nTry: {self.hint}" if self.hint else ""
        print(f"composesim {os.environ['COMPOSESIM_NODE']}: {self.message}{hint}", file=sys.stderr, flush=True)
        EventLog.from_environment(os.environ).emit("start-failed", message=self.message, hint=self.hint)


def import_launcher() -> None:
    """Import what the round will need, while the nodes still find each other. Raises CannotStart without a Paddle that will do."""
    try:
        requirement.require_paddle()
    except installed.Unfit as problem:
        raise CannotStart(problem.code, str(problem), f"{requirement.HINT} paddle") from None
    from paddle.distributed.launch import controllers, main  # noqa: F401


def meet(variables: dict[str, str]) -> tuple[str, str]:
    """(master's address, own address), as the launcher takes them: plain IPv4. Raises CannotStart where nodes cannot meet."""
    name, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    is_first, on_loopback = variables["GROUP_RANK"] == "0", name == _LOOPBACK
    if is_first:
        _require_free(port)
    if is_first or on_loopback:
        master = _MASTER_ON_LOOPBACK if on_loopback else _address_of(name)
        return master, master if is_first else _OTHER_ON_LOOPBACK
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((_address_of(name), port), timeout=_PATIENCE_S) as connection:
                return connection.getpeername()[0], connection.getsockname()[0]
        except OSError:  # it is not there yet, or never will be
            time.sleep(_LOOK_S)
    raise CannotStart(
        UNREACHABLE,
        f"Paddle's master of this round, at '{name}:{port}', has not answered for {_PATIENCE_S:.0f} s",
        "composesim logs, and composesim heal where links were cut",
    )


def launch(variables: dict[str, str], nproc: int, program: list[str], folder: str) -> None:
    """Run Paddle's launcher for one round, to its end."""
    nodes = variables["GROUP_WORLD_SIZE"]
    master, own = meet(variables) if nodes != "1" else (_LOOPBACK, _LOOPBACK)
    for name in [name for name in os.environ if _OUR_PLACE.fullmatch(name)]:
        del os.environ[name]
    sys.argv = [
        *("paddle.distributed.launch", "--master", f"{master}:{variables['MASTER_PORT']}", "--host", own),
        *("--nnodes", nodes, "--rank", variables["GROUP_RANK"], "--nproc_per_node", str(nproc)),
        *("--job_id", variables["COMPOSESIM_GENERATION"], "--max_restart", "0"),
        *("--log_dir", folder, "--log_level", "ERROR", "--enable_gpu_log", "false"),
        *(roles.PROGRAM, "rank", *program),
    ]
    from paddle.distributed.launch import main as paddles

    paddles.launch()


def _address_of(name: str) -> str:
    return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def _require_free(port: int) -> None:
    """Paddle's launcher would take whoever listens there for its master, and wait for answers for ever."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise CannotStart(
                PORT_TAKEN,
                f"port {port}, where Paddle's master of this round is to listen, cannot be had: {error.strerror}",
                f"ss -ltnp sport = :{port}, or another port: composesim up --master-port {port + 1} …",
            ) from None


def _leave_when_let_go(link: socket.socket, folder: str) -> None:
    """Paddle's launcher looks once a second whether its ranks have ended; the agent knows, and waits for nobody."""
    receive(link)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Import Paddle, wait for the agent's word, run one round, and wait to be let go."""
    agent, descriptor = map(int, arguments[:2])
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    # Paddle writes the whole environment into the folder of its logs, which it insists on: ours is gone once the ranks have started.
    events = EventLog.from_environment(os.environ)
    folder = str(events.folder / "observations" / f"{events.node}.paddle")
    shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed while nodes still met
    Path(folder).mkdir(mode=0o700)
    code = 0
    try:
        serve(link, arguments[4:], folder)
    except CannotStart as error:
        error.tell()
        code = error.code
    except Exception as error:  # noqa: BLE001 - whatever Paddle's launcher met is why this node cannot start its ranks
        traceback.print_exc()
        CannotStart(BROKEN, f"paddle.distributed.launch failed: {type(error).__name__}: {error}").tell()
        code = BROKEN
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)  # nothing is left to do, and Paddle takes its time to leave


def serve(link: socket.socket, program: list[str], folder: str) -> None:
    """Serve the agent until it hangs up. Raises CannotStart where no rank could be started."""
    ranks: list[dict[str, str]] = []
    outputs: list[int] = []
    given: list[dict[str, str]] = []
    all_started = threading.Event()

    def when_all_started() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        all_started.set()

    watch_ranks(link, given, outputs, known_by="PADDLE_LOCAL_RANK", without=_DELETED, when_all_started=when_all_started)
    import_launcher()
    if not receive_ranks(link, ranks, outputs):
        return
    given += [{name: rank[name] for name in rank if name not in _NOT_FOR_RANKS} for rank in ranks]
    threading.Thread(target=_leave_when_let_go, args=(link, folder), daemon=True).start()
    try:
        launch(ranks[0], len(ranks), program, folder)
    except SystemExit as error:  # as it ends when its ranks have, well or not
        if not all_started.is_set():
            raise CannotStart(BROKEN, f"paddle.distributed.launch ended with status {error.code}") from None
    threading.Event().wait()  # until the agent, which knows how they ended, lets us go
