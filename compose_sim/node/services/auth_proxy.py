"""How does a program that asks for no password come by one? It listens on loopback alone, and this gate before it asks for the token.

gate.py --listen 6006 --upstream 6007 -- COMMAND...    COMMAND is started, and its end is the gate's
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ..shared.passthrough_args import add_words
from .auth import NAME, Enter, Refuse, decide, without_ours

_MOST_BODY = 64 << 20
_LONGEST_FORM = 4096
_FORM_TYPE = "application/x-www-form-urlencoded"
_ANSWER_WITHIN_S = 300.0
_IDLE_S = 60.0
_CHUNK = 1 << 16
_GRACE_S = 3.0
_OF_THE_CONNECTION = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
_FORM = f"""<!doctype html><title>composesim</title>
<form method="post"><label>The run's token: <input type="password" name="{NAME}" autofocus></label> <button>Open</button></form>
<p>It is in the link that <code>composesim ps</code> prints.</p>
"""
_NOT_YET = '<!doctype html><meta http-equiv="refresh" content="1"><title>composesim</title><p>It is starting.</p>\n'


class Gate(ThreadingHTTPServer):
    """Serves each connection in a thread of its own."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, upstream: int, token: str) -> None:
        """Listen on a port of all interfaces; pass on to one of loopback. `token` opens the gate."""
        self.upstream, self.token = upstream, token
        super().__init__(("", port), Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection from outside."""

    server: Gate
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def version_string(self) -> str:
        """For the header `Server`, without a word of which Python this is."""
        return "composesim"

    def log_message(self, *_: object) -> None:
        """Nothing: a request's line may hold the token."""

    def _serve(self) -> None:
        length = self._length()
        if length is None:
            return
        short = self.rfile.read(length) if length <= _LONGEST_FORM else None
        fills_form = self.command == "POST" and self.headers.get("Content-Type", "").startswith(_FORM_TYPE)
        form = short.decode("ascii", "replace") if short and fills_form else ""
        decision = decide(self.path, _lower(self.headers), self.server.token, form=form)
        if isinstance(decision, Refuse):
            unread = {"Connection": "close"} if short is None else {}  # what a stranger sends is not waited for
            self._say(HTTPStatus.UNAUTHORIZED, _FORM, {"WWW-Authenticate": "Bearer", **unread})
        elif isinstance(decision, Enter):
            self._say(HTTPStatus.SEE_OTHER, "", {"Location": decision.location, "Set-Cookie": decision.cookie})
        else:
            self._pass_on(decision.path, self.rfile.read(length) if short is None else short)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """`do_GET` and its like: every method is served alike."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _length(self) -> int | None:
        """Of the request's body; None where it was refused."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._say(HTTPStatus.LENGTH_REQUIRED, "", {"Connection": "close"})
            return None
        if len(length) > len(str(_MOST_BODY)) or int(length) > _MOST_BODY:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "", {"Connection": "close"})
            return None
        return int(length)

    def _pass_on(self, path: str, body: bytes) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=_ANSWER_WITHIN_S)) as behind:
            try:
                behind.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    kept = without_ours(value, self.server.token) if name.lower() == "cookie" else value
                    if kept and name.lower() not in (*_OF_THE_CONNECTION, "authorization"):
                        behind.putheader(name, kept)
                behind.endheaders(body or None)
                answer = behind.getresponse()
            except ConnectionRefusedError:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, _NOT_YET, {"Retry-After": "1"})
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._say(HTTPStatus.BAD_GATEWAY, f"{type(error).__name__}\n", {"Connection": "close"})
            else:
                self._answer(answer)

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in (*_OF_THE_CONNECTION, "date", "server"):
                self.send_header(name, value)
        has_body = self.command != "HEAD" and answer.status not in (204, 304) and answer.status >= 200
        chunked = has_body and answer.length is None
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while has_body and (data := answer.read1(_CHUNK)):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _say(self, status: HTTPStatus, text: str, headers: dict[str, str]) -> None:
        """An answer of the gate's own."""
        data = text.encode()
        self.send_response(status)
        own = {
            "Content-Type": "text/html; charset=utf-8",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in {**own, **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _lower(headers: Message) -> dict[str, str]:
    """Headers by their names in lower case: clients write them in any."""
    return {name.lower(): value for name, value in headers.items()}


def main(arguments: list[str]) -> int:
    """Serve until told to end (0), or until the command ends by itself: then with its status."""
    parser = argparse.ArgumentParser(
        prog="auth-proxy", description="A program behind a gate that asks for the run's token."
    )
    parser.add_argument("--listen", type=int, required=True, help="port, on all interfaces")
    parser.add_argument("--upstream", type=int, required=True, help="port on loopback that is behind the gate")
    add_words(parser, "command", help="-- and what to start")
    options = parser.parse_args(arguments)
    token = (Path(os.environ["COMPOSESIM_DIR"]) / "secrets" / "token").read_text().strip()
    gate = Gate(options.listen, options.upstream, token)
    threading.Thread(target=gate.serve_forever, daemon=True).start()
    child = subprocess.Popen(options.command, stdin=subprocess.DEVNULL)
    told = threading.Event()

    def leave(*_: object) -> None:
        told.set()
        child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    status = _end_of(child, told)
    gate.shutdown()
    return 0 if told.is_set() else status or 1


def _end_of(child: subprocess.Popen[bytes], told: threading.Event) -> int:
    """Its exit status, as a shell gives it; one that was told to end and does not is killed."""
    while True:
        try:
            status = child.wait(_GRACE_S if told.is_set() else None)
            return status if status >= 0 else 128 - status
        except subprocess.TimeoutExpired:
            child.kill()
