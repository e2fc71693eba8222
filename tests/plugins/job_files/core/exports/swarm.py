"""Run a swarm of several Docker daemons on this machine, each in its own network namespace, and remove every trace of it."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IMAGE = "skeleton:1"  # no files: the tests mount this machine's Python
_FOLDERS = ("tmp", "proc", "sys", "dev", "usr", "etc", "root", "run")


class Swarm:
    """Docker daemons that form a swarm. Their bridge is in a namespace too, out of reach of this machine's firewall."""

    def __init__(self, daemons: int, until: Callable[[Callable[[], bool]], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="swarm-", dir="/tmp"))  # paths of sockets are short
        self.id = secrets.token_hex(3)
        self._numbers = range(1, daemons + 1)
        self._until = until
        self._daemons: list[subprocess.Popen[bytes]] = []

    def docker(self, *words: str, daemon: int = 1) -> str:
        argv = ["docker", "-H", f"unix://{self.folder}/{daemon}.sock", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    def start(self) -> None:
        self._ip("netns", "add", self.namespace(0))
        self._ip("-n", self.namespace(0), "link", "add", "br0", "type", "bridge")
        self._ip("-n", self.namespace(0), "link", "set", "br0", "up")
        for number in self._numbers:
            self._start_daemon(number)
        for number in self._numbers:
            self._until(lambda number=number: self._answers(number))  # type: ignore[misc]  # the number of now
            self._import_image(number)
        self.docker("swarm", "init", "--advertise-addr", "10.213.7.1", "--default-addr-pool", "10.214.0.0/16")
        token = self.docker("swarm", "join-token", "--quiet", "worker").strip()
        for number in self._numbers[1:]:
            self.docker("swarm", "join", "--token", token, "10.213.7.1:2377", daemon=number)

    def tasks(self, stack: str) -> dict[str, str]:
        """Return the state of each task, `{"demo_node-0.1": "Complete"}`; none until the swarm has made them."""
        try:
            lines = self.docker("stack", "ps", stack, "--format", "json").splitlines()
        except subprocess.CalledProcessError as error:
            if "nothing found in stack" not in error.stderr:
                raise
            return {}
        return {task["Name"]: task["CurrentState"].split()[0] for task in map(json.loads, lines)}

    def output_of(self, service: str) -> list[str]:
        """Return what a service printed, on both streams."""
        argv = ["docker", "-H", f"unix://{self.folder}/1.sock", "service", "logs", "--raw", service]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.stdout.splitlines()

    def stop(self) -> None:
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(timeout=60)
        for number in (0, *self._numbers):
            with suppress(subprocess.CalledProcessError):
                self._ip("netns", "del", self.namespace(number))
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((each for each in mounts if each.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.folder)

    def namespace(self, number: int) -> str:
        """Return the network namespace of a daemon, or of the bridge (0)."""
        return f"swarm-{self.id}-{number}"

    def _start_daemon(self, number: int) -> None:
        own, hub = self.namespace(number), self.namespace(0)
        self._ip("netns", "add", own)
        self._ip("-n", hub, "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", own)
        self._ip("-n", hub, "link", "set", f"v{number}", "master", "br0", "up")
        self._ip("-n", own, "addr", "add", f"10.213.7.{number}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            self._ip("-n", own, "link", "set", device, "up")
        path = f"{self.folder}/{number}"
        argv = ["nsenter", f"--net=/run/netns/{own}", "dockerd", "--config-file", "/dev/null"]
        argv += ["--data-root", f"{path}/data", "--exec-root", f"{path}/exec", "--pidfile", f"{path}.pid"]
        argv += ["-H", f"unix://{path}.sock", "--bip", f"172.31.{number}.1/24"]
        with Path(f"{path}.log").open("wb") as log:
            self._daemons.append(subprocess.Popen(argv, stdout=log, stderr=log))

    def _answers(self, number: int) -> bool:
        with suppress(subprocess.CalledProcessError):
            return bool(self.docker("version", "--format", "{{.Server.Version}}", daemon=number))
        return False

    def _import_image(self, number: int) -> None:
        root = self.folder / "image"
        for name in _FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            link = root / name
            if not link.is_symlink():
                link.symlink_to(f"usr/{name}")
        archive = shutil.make_archive(str(self.folder / "image"), "tar", root)
        self.docker("import", archive, IMAGE, daemon=number)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def running_swarm(daemons: int, until: Callable[[Callable[[], bool]], None]) -> Iterator[Swarm]:
    """Start a swarm, and stop it whatever happens. `until` waits for a condition."""
    swarm = Swarm(daemons, until)
    try:
        swarm.start()
        yield swarm
    finally:
        swarm.stop()
