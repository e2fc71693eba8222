"""Collect a run's metrics from its event files and logs, and export them to Prometheus.

Arguments of the role `metrics-exporter`: --listen PORT, on loopback, where the run's Prometheus reads it
"""

from __future__ import annotations

import argparse
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ....node.shared.regular_files import read_regular

# Names of metrics per rank, and series per family: a script can print and write ever new ones
_MAX_METRICS, _MAX_SERIES = 100, 100_000
# Writer -> the kinds of events that are read from its file. What a node reports about others does not count.
_KINDS_OF: Mapping[str, tuple[str, ...]] = {"composesim": ("node-stopped", "fault"), "master": ("round", "node-lost")}
_KINDS_OF_NODES = ("usage", "node-started", "node-exited", "rank-started", "rank-exited", "step", "waited")

# Name -> help. By convention, counters end in _total.
_FAMILIES: Mapping[str, str] = {
    "node_up": "1 if the node runs.",
    "node_cpu_seconds_total": "CPU time used by the node.",
    "node_memory_bytes": "Memory in use on the node, without inactive page cache.",
    "node_memory_limit_bytes": "Memory limit of the node.",
    "node_received_bytes_total": "Bytes received by the node.",
    "node_sent_bytes_total": "Bytes sent by the node.",
    "node_gpu_use_ratio": "Utilization of the node's GPUs, 0 to 1, including other nodes on shared GPUs.",
    "node_gpu_memory_bytes": "Memory in use on the node's GPUs, including other nodes on shared GPUs.",
    "rank_up": "1 if the rank runs.",
    "rank_steps": "Optimizer steps of the rank.",
    "rank_longest_wait_seconds": "Longest time for which the rank waited for others in one collective.",
    "rank_metric": "Latest value of each number in the metric lines that the rank printed.",
    "round": "Number of the current rendezvous round.",
    "world_size": "Ranks in the current round.",
    "restarts_total": "Rounds that were started after a failure.",
    "nodes_lost_total": "Nodes that were lost.",
    "faults_total": "Injected faults by kind.",
}
_USAGE = {
    "cpu_s": "node_cpu_seconds_total",
    "memory_bytes": "node_memory_bytes",
    "memory_limit_bytes": "node_memory_limit_bytes",
    "received_bytes": "node_received_bytes_total",
    "sent_bytes": "node_sent_bytes_total",
    "gpu_use": "node_gpu_use_ratio",
    "gpu_memory_bytes": "node_gpu_memory_bytes",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The latest value of each series."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in _FAMILIES}

    def add_event(self, writer: str, line: str) -> None:
        """Update the metrics from one line of the file of a node, the master or composesim; ignore what these do not write."""
        event = _object(line)
        data = event.get("data") if event else None
        if event is None or not isinstance(data, dict):
            return
        node, rank, kind = event.get("node"), event.get("rank"), event.get("kind")
        if kind not in _KINDS_OF.get(writer, _KINDS_OF_NODES) or node != writer != "composesim":
            return
        if kind == "usage":
            for key, name in _USAGE.items():
                self._set(name, data.get(key), node=node)
        elif kind in ("node-started", "node-exited", "node-stopped") and str(node).startswith("node-"):
            self._set("node_up", kind == "node-started", node=node)
            self._stop_ranks(str(node))
        elif kind in ("rank-started", "rank-exited"):
            self._set("rank_up", kind == "rank-started", node=node, rank=rank)
        elif kind == "step":
            self._set("rank_steps", data.get("step"), node=node, rank=rank)
        elif kind == "waited":
            self._set("rank_longest_wait_seconds", data.get("seconds"), node=node, rank=rank)
        elif kind == "round":
            self._set("round", data.get("generation"))
            self._set("world_size", data.get("world_size"))
            self._set("restarts_total", data.get("restart_count"))
        elif kind == "node-lost":
            self._count("nodes_lost_total")
        elif kind == "fault" and data.get("phase") == "begun":
            self._count("faults_total", kind=data.get("kind"))

    def add_output(self, node: str, rank: str, line: str) -> None:
        """Update the metrics from one line of a rank's output: a JSON object with an integer `step` is a metric line."""
        text = line.strip()
        metric = _object(text) if text.startswith("{") and '"step"' in text else None
        step = metric.get("step") if metric else None
        if metric is None or not isinstance(step, int) or isinstance(step, bool):
            return
        series = self._values["rank_metric"]
        known = {name for (_, on), (_, of), (_, name) in series if (on, of) == (node, rank)}
        for name, value in metric.items():
            if name in known or len(known) < _MAX_METRICS:
                self._set("rank_metric", value, node=node, rank=rank, metric=name)
                known.add(name)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        lines = []
        for family, description in _FAMILIES.items():
            name, kind = f"composesim_{family}", "counter" if family.endswith("_total") else "gauge"
            if self._values[family]:
                lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{_braces(labels)} {_number(value)}" for labels, value in self._values[family].items()]
        return "\n".join([*lines, ""])

    def _set(self, name: str, value: Any, **labels: Any) -> None:
        series, key = self._values[name], _labels(labels)
        if isinstance(value, (int, float)) and (key in series or len(series) < _MAX_SERIES):
            with suppress(OverflowError):  # an integer of hundreds of digits
                series[key] = float(value)

    def _count(self, name: str, **labels: Any) -> None:
        key = _labels(labels)
        self._values[name][key] = self._values[name].get(key, 0.0) + 1

    def _stop_ranks(self, node: str) -> None:
        ranks = self._values["rank_up"]
        for labels in ranks:
            if ("node", node) in labels:
                ranks[labels] = 0.0


def _labels(labels: Mapping[str, Any]) -> Labels:
    return tuple((name, str(value)) for name, value in labels.items() if value is not None)


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _braces(labels: Labels) -> str:
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}" if written else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value.is_integer() else repr(value)


_CHUNK = 4 << 20  # bytes to read per file and request


class RunReader:
    """Follows the files in a run's folder."""

    def __init__(self, folder: Path) -> None:
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
