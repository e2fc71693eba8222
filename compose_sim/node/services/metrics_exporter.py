"""Export a run's metrics to Prometheus, from the run's event files and logs.

Arguments of the role `metrics-exporter`: --listen PORT, on loopback, where the run's Prometheus reads it
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ..shared.regular_files import read_regular
from .metrics import Metrics

_CHUNK = 4 << 20  # bytes to read per file and request


class RunReader:
    """Follows the files in a run's folder."""

    def __init__(self, folder: Path) -> None:
        """Start at the beginning of each file."""
        self.metrics = Metrics()
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def catch_up(self) -> None:
        """Read what was added; an incomplete last line is read later."""
        for path in sorted((*self._folder.glob("journal/*.jsonl"), *self._files_of_nodes("events/*.jsonl"))):
            for line in self._new_lines(path):
                self.metrics.add_event(path.stem, line)
        for path in sorted(self._files_of_nodes("logs/*.*.log")):
            node, _, rank = path.stem.partition(".")
            for line in self._new_lines(path) if rank.isdecimal() else ():
                self.metrics.add_output(node, rank, line)

    def _files_of_nodes(self, pattern: str) -> Iterator[Path]:
        """Yield the files in the folder of each node that are named after it; the driver runs on the master."""
        for folder in self._folder.glob("nodes/*"):
            for path in folder.glob(pattern):
                if path.name.partition(".")[0] in (folder.name, "driver" if folder.name == "master" else ""):
                    yield path

    def _new_lines(self, path: Path) -> list[str]:
        at = self._offsets.get(path, 0)
        try:
            data = read_regular(path, _CHUNK, offset=at)
        except OSError:
            return []
        complete, newline, _ = data.rpartition(b"\n")
        if not newline and len(data) == _CHUNK:  # an endless line, which is no event
            self._offsets[path] = at + len(data)
            return []
        self._offsets[path] = at + len(complete) + len(newline)
        return complete.decode("utf-8", "replace").splitlines()


class Exporter(ThreadingHTTPServer):
    """Serves the metrics over HTTP."""

    daemon_threads = True

    def __init__(self, port: int, folder: Path) -> None:
        """Listen on loopback."""
        self._reader, self._lock = RunReader(folder), threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def text(self) -> str:
        """Return the current metrics."""
        with self._lock:
            self._reader.catch_up()
            return self._reader.metrics.text()


class _Handler(BaseHTTPRequestHandler):
    server: Exporter

    def log_message(self, *_: object) -> None:
        """Log nothing, because Prometheus sends a request every two seconds."""

    def do_GET(self) -> None:
        """Answer `/metrics`."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        data = self.server.text().encode("utf-8", "replace")  # a script can name a metric with half of a surrogate pair
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="metrics-exporter", description="Export a run's metrics to Prometheus.")
    parser.add_argument("--listen", type=int, required=True, help="port on loopback")
    Exporter(parser.parse_args(arguments).listen, Path(os.environ["COMPOSESIM_DIR"])).serve_forever()
