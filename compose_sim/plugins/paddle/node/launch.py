"""Start a node's ranks with the real paddle.distributed.launch, in this process, which serves one round.

Arguments of the role `paddle-launch`: AGENT_PID CHANNEL_DESCRIPTOR paddle -- [-m] SCRIPT ARGS...

Paddle's launchers find each other through the one on the first node, which listens on MASTER_ADDR:MASTER_PORT during this
round. Paddle's own failure handling (`--max_restart`, etcd) is off: composesim stops the ranks of all nodes, and starts
another round.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
import traceback
from pathlib import Path

from ....node.master.driver_membership import UNREACHABLE, StartError
from ....node.shared import process, roles
from ....node.shared.event_log import EventLog
from ....node.shared.master_protocol import connect
from ....node.shared.starter_protocol import receive
from ....node.starters.popen_hook import RankWatcher
from .driver import require_paddle

PORT_TAKEN, BROKEN = 94, 95
_PATIENCE_S = 60.0
# Nodes that share an address would all try to serve the store, each after up to 2 s of sleep. On this machine they use several.
_LOOPBACK, _MASTER_ON_LOOPBACK, _OTHER_ON_LOOPBACK = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# Paddle's ranks would look for the store there, but the launcher serves it elsewhere.
_NOT_FOR_RANKS = ("MASTER_ADDR", "MASTER_PORT")
# These name a folder that is deleted once the ranks run.
_DELETED = ("PADDLE_BACKUP_ENV_PATH", "PADDLE_LOG_DIR")
# Paddle's variables that override the launcher's options, and thereby the place that the master has assigned.
_OVERRIDES = re.compile(
    r"POD_IP|PADDLE_(MASTER|NNODES|NPROC_PER_NODE|RANK|TRAINER_ID|TRAINER_ENDPOINTS|JOB_ID|LOG_DIR|MAX_RESTART|ELASTIC_LEVEL|IPS|RUN_MODE)"
    r"|DISTRIBUTED_TRAINER_ENDPOINTS"
)


def report(error: StartError) -> None:
    """Print why this node cannot start its ranks, and report it as the cause."""
    hint = f"\nTry: {error.hint}" if error.hint else ""
    print(f"composesim {os.environ['COMPOSESIM_NODE']}: {error}{hint}", file=sys.stderr, flush=True)
    EventLog.from_environment(os.environ).emit("start-failed", message=str(error), hint=error.hint)


def find_master(variables: dict[str, str]) -> tuple[str, str]:
    """Return the IPv4 addresses of Paddle's master and of this node; raises StartError if they cannot connect."""
    name, port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
    is_first, on_loopback = variables["GROUP_RANK"] == "0", name == _LOOPBACK
    if is_first:
        _require_free(port)
    if is_first or on_loopback:
        master = _MASTER_ON_LOOPBACK if on_loopback else socket.gethostbyname(name)
        return master, master if is_first else _OTHER_ON_LOOPBACK
    try:
        with connect(name, port, _PATIENCE_S) as connection:
            return connection.getpeername()[0], connection.getsockname()[0]
    except TimeoutError as error:
        message = f"cannot reach Paddle's master of this round: {error}"
        raise StartError(UNREACHABLE, message, "composesim logs, or composesim heal if links were cut") from None


def launch(variables: dict[str, str], nproc: int, program: list[str], folder: str) -> None:
    """Run Paddle's launcher for one round."""
    nodes = variables["GROUP_WORLD_SIZE"]
    master, own = find_master(variables) if nodes != "1" else (_LOOPBACK, _LOOPBACK)
    for name in [name for name in os.environ if _OVERRIDES.fullmatch(name)]:
        del os.environ[name]
    sys.argv = [
        *("paddle.distributed.launch", "--master", f"{master}:{variables['MASTER_PORT']}", "--host", own),
        *("--nnodes", nodes, "--rank", variables["GROUP_RANK"], "--nproc_per_node", str(nproc)),
        *("--job_id", variables["COMPOSESIM_GENERATION"], "--max_restart", "0"),
        *("--log_dir", folder, "--log_level", "ERROR", "--enable_gpu_log", "false"),
        *(roles.PROGRAM, "rank", *program),
    ]
    from paddle.distributed.launch import main as launcher

    launcher.launch()


def _require_free(port: int) -> None:
    """Raise StartError if the port is taken: Paddle's launcher would take any listener for the master, and wait forever."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            raise StartError(
                PORT_TAKEN,
                f"Paddle's master of this round cannot listen on port {port}: {error.strerror}",
                f"ss -ltnp sport = :{port}, or another port: composesim up --master-port {port + 1} …",
            ) from None


def _exit_when_agent_leaves(link: socket.socket, folder: str) -> None:
    """Exit as soon as the agent disconnects: Paddle's launcher would notice the end of the ranks up to a second later."""
    receive(link)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Import Paddle, run the round that the agent starts, and wait until the agent disconnects."""
    agent, descriptor = map(int, arguments[:2])
    process.die_with(agent)
    link = socket.socket(fileno=descriptor)
    # Paddle insists on a folder for logs, and writes the whole environment there: delete it once the ranks have started.
    events = EventLog.from_environment(os.environ)
    folder = str(events.folder / "observations" / f"{events.node}.paddle")
    shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed before all nodes had met
    Path(folder).mkdir(mode=0o700)
    code = 0
    try:
        serve(link, arguments[4:], folder)
    except StartError as error:
        report(error)
        code = error.code
    except Exception as error:  # noqa: BLE001 - what Paddle's launcher raises is why this node cannot start its ranks
        traceback.print_exc()
        report(StartError(BROKEN, f"paddle.distributed.launch failed: {type(error).__name__}: {error}"))
        code = BROKEN
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)  # nothing is left to do, and Paddle takes time to exit


def serve(link: socket.socket, program: list[str], folder: str) -> None:
    """Serve the agent until it disconnects; raises StartError if no rank could be started."""
    all_started = threading.Event()

    def when_all_started() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        all_started.set()

    watcher = RankWatcher(
        link, local_rank_variable="PADDLE_LOCAL_RANK", remove=_DELETED, when_all_started=when_all_started
    )
    watcher.install()
    require_paddle("paddle")
    from paddle.distributed.launch import controllers, main  # noqa: F401 - while the nodes still find each other

    ranks = watcher.receive()
    if not ranks:
        return
    watcher.variables += [{name: rank[name] for name in rank if name not in _NOT_FOR_RANKS} for rank in ranks]
    threading.Thread(target=_exit_when_agent_leaves, args=(link, folder), daemon=True).start()
    try:
        launch(ranks[0], len(ranks), program, folder)
    except SystemExit as error:  # raised after the ranks have ended, whether they failed or not
        if not all_started.is_set():
            raise StartError(BROKEN, f"paddle.distributed.launch ended with status {error.code}") from None
    threading.Event().wait()  # until the agent, which knows how the ranks ended, disconnects
