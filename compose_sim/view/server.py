"""Serve the live page on 127.0.0.1: the page, the list of runs, a stream of messages per reader (server-sent events), and actions.

The page holds no data. Whoever asks for data needs the token, which is in the fragment of the printed address: browsers send it to
no server, and no other page can read it. Connections of other users of this machine are closed at once. Requests for another
host name are refused, so that a name that an attacker points at 127.0.0.1 reaches nothing. Actions need the token in a header
too, and JSON: a form of another page can send neither.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from compose_sim.core.faults.commands import Fault, Intervention, SetLinks, intervention_from_dict
from compose_sim.core.faults.parse import parse_fault
from compose_sim.core.network.links import check_links
from compose_sim.core.plan.model import Plan
from compose_sim.core.view.thinning import MAX_POINTS, thinned_points
from compose_sim.engine.loopback import is_own_peer
from compose_sim.engine.run_folder.control_requests import new_id, send_request
from compose_sim.engine.run_folder.folder import RunFolder, is_run_folder
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.view.bundle import content_policy, live_page
from compose_sim.view.reader import PageReader


def act(folder: RunFolder, values: Any) -> str:
    """Have the process of the run execute an intervention, and return the id of the request; SpecError if it is invalid."""
    try:
        intervention = _checked(values, folder.read_plan())
    except (ValueError, TypeError) as error:
        raise SpecError(f"this is no action: {error}", hint="composesim fault list") from None
    request = new_id(values["verb"])
    send_request(folder, intervention, request)
    return request


def _checked(values: Any, plan: Plan) -> Intervention:
    """Return the intervention; a fault is parsed from its words, as on the command line."""
    if isinstance(values, Mapping) and values.get("verb") == "fault":
        arguments, options, for_s = values.get("arguments"), values.get("options", {}), values.get("for_s")
        if not (isinstance(arguments, list) and all(isinstance(each, str) for each in arguments)):
            raise ValueError("arguments: not a list of texts")
        if not isinstance(options, Mapping):
            raise ValueError("options: not an object")
        fault = parse_fault(str(values.get("kind")), arguments, options, plan=plan)
        known = intervention_from_dict({"verb": "fault", "kind": fault.kind, "for_s": for_s})
        if not isinstance(known, Fault) or (for_s is not None and not 0 < for_s < float("inf")):
            raise ValueError(f"for_s: {for_s!r:.40} is no time")
        return Fault(kind=fault.kind, nodes=fault.nodes, rank=fault.rank, options=fault.options, for_s=known.for_s)
    intervention = intervention_from_dict(values)
    if isinstance(intervention, SetLinks):
        check_links(intervention.links, [node.name for node in plan.nodes])
    return intervention


_BETWEEN_MESSAGES_S = 0.5
_PING_S = 10.0
_WRITE_WITHIN_S = 60.0  # a reader that takes nothing for so long is dropped
_MAX_CONNECTIONS = 64  # each has a thread and a descriptor, which a run with --view needs too
_MAX_BYTES_OF_ACTION = 1 << 16
_APPENDED = ("spans", "lines", "texts", "usage", "metrics", "logs", "sources")
_FIRST_BYTES, _LINES_AT_A_TIME = 64 << 10, 20_000


class ViewServer(ThreadingHTTPServer):
    """Serves the runs beside one run; each connection has a thread, and a reader that sleeps delays no other."""

    daemon_threads = True

    def __init__(self, folder: RunFolder, port: int = 0, *, read_only: bool = False) -> None:
        """Listen on a port; 0 chooses a free one. If `read_only`, actions are refused."""
        self.folder, self.token, self.read_only = folder, secrets.token_urlsafe(24), read_only
        self._opens_once = f"/open/{secrets.token_urlsafe(24)}"
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._streams, self._stream_ended = 0, threading.Condition()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://127.0.0.1:{self.server_port}/#token={self.token}"

    def wait_for_readers(self, seconds: float) -> None:
        """Wait until all readers have been sent the end of their run, but no longer than this."""
        with self._stream_ended:
            self._stream_ended.wait_for(lambda: self._streams == 0, seconds)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a reader meanwhile."""
        with self._stream_ended:
            self._streams += 1
        try:
            yield
        finally:
            with self._stream_ended:
                self._streams -= 1
                self._stream_ended.notify_all()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether to serve a connection."""
        try:
            return is_own_peer(request) and self._free.acquire(blocking=False)
        except OSError:  # it has ended, or there is no descriptor left
            return False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, which then makes room for another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a page that fails must not disturb the run."""

    @property
    def address_to_open(self) -> str:
        """The address for a browser, whose arguments all users can read: it leads to `address` once, and only this user."""
        return f"http://127.0.0.1:{self.server_port}{self._opens_once}"

    def takes_first(self, path: str) -> bool:
        """Return whether a path is that of `address_to_open`, which is not used a second time."""
        is_it = hmac.compare_digest(path.encode(), self._opens_once.encode())
        self._opens_once = "" if is_it else self._opens_once
        return is_it

    def runs(self) -> dict[str, RunFolder]:
        """Return the runs of the project, by name."""
        if not is_run_folder(self.folder.path):  # one that `render` wrote, elsewhere
            return {self.folder.name: self.folder}
        above = SafeFolder(self.folder.path.parent)
        folders = (RunFolder(above.path / name) for name in above.folders())
        return {folder.name: folder for folder in folders if folder.files.status("plan.json")}


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = _WRITE_WITHIN_S

    def version_string(self) -> str:
        """Return the header `Server`, without the version of Python."""
        return "composesim"

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal shows the address."""

    def do_GET(self) -> None:
        request = urlsplit(self.path)
        if not self._is_for_us():
            return
        if request.path.startswith("/open/") and self.server.takes_first(request.path):
            self._begin(HTTPStatus.FOUND, "text/plain", {"Location": self.server.address, "Content-Length": "0"})
        elif request.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", live_page())
        elif request.path not in ("/runs", "/events"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page\n")
        elif not self._is_allowed():
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "the token is missing or wrong\n")
        elif request.path == "/runs":
            runs = self.server.runs().values()
            listed = [{"name": run.name, "is_running": run.is_claimed()} for run in runs]
            shown = {"runs": listed, "shown": self.server.folder.name, "read_only": self.server.read_only}
            self._answer(HTTPStatus.OK, "application/json", json.dumps(shown))
        else:
            self._stream(_named_run(request.query) or self.server.folder.name)

    def do_POST(self) -> None:
        request = urlsplit(self.path)
        if not self._is_for_us():
            return
        length = self.headers.get("Content-Length", "")
        folder = self.server.runs().get(_named_run(request.query))
        if not self._is_allowed():
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "the token is missing or wrong\n")
        elif self.server.read_only:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "the page was started with --read-only\n")
        elif request.path != "/actions" or folder is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is no such run\n")
        elif self.headers.get("Content-Type") != "application/json":
            self._answer(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "text/plain", "an action is application/json\n")
        elif not (length.isascii() and length.isdigit() and int(length) <= _MAX_BYTES_OF_ACTION):
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "text/plain", "an action is at most 64 KiB\n")
        else:
            self._act(folder, self.rfile.read(int(length)))

    def _act(self, folder: RunFolder, body: bytes) -> None:
        try:
            done = act(folder, json.loads(body))
        except ComposesimError as error:
            self._answer(HTTPStatus.OK, "application/json", json.dumps({"refused": error.message}))
        except (ValueError, RecursionError):
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", "an action is a JSON object\n")
        else:
            self._answer(HTTPStatus.OK, "application/json", json.dumps({"id": done}))

    def _is_for_us(self) -> bool:
        """Return whether a request names this server, and comes from its own page; refuse it otherwise."""
        ours = {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in ours and (origin is None or origin in {f"http://{each}" for each in ours}):
            return True
        self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "open the address that composesim view printed\n")
        return False

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {self.server.token}".encode())

    def _answer(self, status: HTTPStatus, content_type: str, text: str) -> None:
        data = text.encode()
        self._begin(status, content_type, {"Content-Length": str(len(data))})
        self.wfile.write(data)

    def _begin(self, status: HTTPStatus, content_type: str, more: dict[str, str]) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": content_type,
            "Content-Security-Policy": content_policy(live=True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        for name, value in {**headers, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self, name: str) -> None:
        """Send messages until the run is over or the reader has gone."""
        folder = self.server.runs().get(name)
        if folder is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is no such run\n")
            return
        try:
            reader = PageReader(folder)
        except SpecError as error:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"{error.message}\n")
            return
        self._begin(HTTPStatus.OK, "text/event-stream", {})
        try:
            with self.server.streaming():
                self._send_messages(reader)
        except (OSError, SpecError):  # the reader has gone, or the folder of the run
            pass
        finally:
            reader.close()

    def _send_messages(self, reader: PageReader) -> None:
        sent, last = None, 0.0
        if size := reader.much_to_read():  # the end of the logs first: nobody looks at an empty page
            message = PageReader(reader.folder, last=_FIRST_BYTES).read()
            self._send({**message, "now": {**message["now"], "reading_bytes": size}})
        while not reader.is_over:
            message = reader.read()
            if message["now"] != sent or any(message[name] for name in _APPENDED):
                sent, last = message["now"], time.monotonic()
                lines, points = message["logs"], thinned_points(message["metrics"], MAX_POINTS)
                self._send({**message, "logs": lines[-_LINES_AT_A_TIME:], "metrics": points, "is_whole": bool(size)})
                for end in range(len(lines) - _LINES_AT_A_TIME, 0, -_LINES_AT_A_TIME):
                    self._send({"earlier": lines[max(0, end - _LINES_AT_A_TIME) : end]})
            elif time.monotonic() - last > _PING_S:
                last = time.monotonic()
                self.wfile.write(b": still here\n\n")
            self.wfile.flush()
            if not reader.is_over:
                time.sleep(_BETWEEN_MESSAGES_S)

    def _send(self, message: Mapping[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(message, separators=(',', ':'))}\n\n".encode())


def _named_run(query: str) -> str:
    return parse_qs(query).get("run", [""])[0]
