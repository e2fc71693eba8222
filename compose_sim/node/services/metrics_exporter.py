"""What does Prometheus hear of a run? Its event files and logs, read on at each question, in numbers.

exporter.py --listen 9100    on loopback, for the Prometheus beside it
"""

from __future__ import annotations

import argparse
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .metrics import Numbers

_CHUNK = 4 << 20  # bytes of one file at a time: a loud rank is caught up with over several questions


class Reader:
    """Follows the files of a run's folder."""

    def __init__(self, folder: Path) -> None:
        """From their beginning."""
        self.numbers = Numbers()
        self._folder = folder
        self._read: dict[Path, int] = {}

    def catch_up(self) -> None:
        """Read what has been added; the rest of a last line that is not complete waits."""
        for path in sorted((self._folder / "events").glob("*.jsonl")):
            for line in self._new_lines(path):
                self.numbers.hear(line)
        for path in sorted((self._folder / "logs").glob("*.*.log")):
            node, _, rank = path.stem.partition(".")
            for line in self._new_lines(path) if rank.isdigit() else ():
                self.numbers.read(node, rank, line)

    def _new_lines(self, path: Path) -> list[str]:
        at = self._read.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(at)
                data = file.read(_CHUNK)
        except OSError:
            return []
        complete, newline, _ = data.rpartition(b"\n")
        if not newline and len(data) == _CHUNK:  # a line without an end: it is no event
            self._read[path] = at + len(data)
            return []
        self._read[path] = at + len(complete) + len(newline)
        return complete.decode("utf-8", "replace").splitlines()


class Exporter(ThreadingHTTPServer):
    """One reader for all who ask."""

    daemon_threads = True

    def __init__(self, port: int, folder: Path) -> None:
        """Listen on loopback."""
        self._reader, self._lock = Reader(folder), threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def text(self) -> str:
        """The numbers as they are now."""
        with self._lock:
            self._reader.catch_up()
            return self._reader.numbers.text()


class _Handler(BaseHTTPRequestHandler):
    server: Exporter

    def log_message(self, *_: object) -> None:
        """Nothing: somebody asks every two seconds."""

    def do_GET(self) -> None:
        """`/metrics`."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        data = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="metrics-exporter", description="A run's events, as Prometheus reads them.")
    parser.add_argument("--listen", type=int, required=True, help="port on loopback")
    Exporter(parser.parse_args(arguments).listen, Path(os.environ["COMPOSESIM_DIR"])).serve_forever()
