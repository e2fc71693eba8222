"""Put a program without a password behind a proxy that requires the run's token, in a link, a cookie or a header.

Arguments of the role `auth-proxy`: --listen PORT --upstream PORT -- COMMAND...

The command listens on loopback only; the proxy starts it, and exits when it does.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import http.client
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Union
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ....node.shared import process
from ....node.shared.roles import add_passthrough

NAME = "token"  # the parameter in a link, and the field in the form


@dataclass(frozen=True)
class Allow:
    """Forward the request."""

    path: str


@dataclass(frozen=True)
class SetCookie:
    """Set the cookie, and redirect to the same place without the token, which then stays in no browser history."""

    location: str
    cookie: str


@dataclass(frozen=True)
class Deny:
    """Refuse the request."""


Decision = Union[Allow, SetCookie, Deny]


def decide(path: str, headers: Mapping[str, str], token: str, *, form: str = "") -> Decision:
    """Decide about a request. `headers` have lower-case names; `form` is the body of a submitted form."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as http://[
        return Deny()
    query = parse_qsl(parts.query, keep_blank_values=True)
    shown = [value for name, value in (*query, *parse_qsl(form)) if name == NAME]
    if any(_same(value, token) for value in shown):
        left = urlencode([pair for pair in query if pair[0] != NAME])
        # Only the path: a link to //elsewhere must not redirect to another host.
        here = "/" + parts.path.lstrip("/\\")  # browsers treat both slashes alike
        return SetCookie(location=urlunsplit(("", "", here, left, "")), cookie=_cookie(token))
    if _cookie_shown(headers.get("cookie", ""), token) or _same(_in_header(headers.get("authorization", "")), token):
        return Allow(path=path)
    return Deny()


def without_ours(cookies: str, token: str) -> str:
    """Return the cookies of a request without the proxy's own, which the program behind it need not see."""
    return "; ".join(pair for pair in cookies.split("; ") if pair.partition("=")[0] != _cookie_name(token))


def _cookie(token: str) -> str:
    """Return a cookie that does not contain the token, that no script can read, and that no form on another site sends."""
    return f"{_cookie_name(token)}={_digest(token, 'gate')}; Path=/; HttpOnly; SameSite=Lax"


def _cookie_name(token: str) -> str:
    """Return a name per run: browsers share cookies between all ports of a machine."""
    return f"composesim-{_digest(token, 'name')[:12]}"


def _digest(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"composesim {purpose}".encode(), "sha256").hexdigest()


def _cookie_shown(text: str, token: str) -> bool:
    try:
        morsel = SimpleCookie(text).get(_cookie_name(token))
    except CookieError:
        return False
    return morsel is not None and _same(morsel.value, _digest(token, "gate"))


def _in_header(text: str) -> str | None:
    """Return the token in `Bearer TOKEN`, or the password in `Basic`, with any user name."""
    scheme, _, value = text.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not text
        return None


def _same(given: str | None, wanted: str) -> bool:
    """Compare in constant time."""
    return bool(wanted) and given is not None and hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


_MAX_BODY = 64 << 20
_LONGEST_FORM = 4096
_FORM_TYPE = "application/x-www-form-urlencoded"
_ANSWER_WITHIN_S = 300.0
_IDLE_S = 60.0
_CHUNK = 1 << 16
_GRACE_S = 3.0
_HOP_BY_HOP_TEXT = "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade"
_HOP_BY_HOP = frozenset(_HOP_BY_HOP_TEXT.split())
_FORM = f"""<!doctype html><title>composesim</title>
<form method="post"><label>The run's token: <input type="password" name="{NAME}" autofocus></label> <button>Open</button></form>
<p><code>composesim ps</code> prints a link with the token.</p>
"""
_STARTING = (
    '<!doctype html><meta http-equiv="refresh" content="1"><title>composesim</title><p>The program is starting.</p>\n'
)


class AuthProxy(ThreadingHTTPServer):
    """The proxy, with one thread per connection."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, upstream: int, token: str) -> None:
        """Listen on a port of all interfaces, and forward to a port of loopback."""
        self.upstream, self.token = upstream, token
        super().__init__(("", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: AuthProxy
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def version_string(self) -> str:
        """Return the header `Server`, without the version of Python."""
        return "composesim"

    def log_message(self, *_: object) -> None:
        """Log nothing, because a request line may hold the token."""

    def _serve(self) -> None:
        length = self._length()
        if length is None:
            return
        short = self.rfile.read(length) if length <= _LONGEST_FORM else None
        fills_form = self.command == "POST" and self.headers.get("Content-Type", "").startswith(_FORM_TYPE)
        form = short.decode("ascii", "replace") if short and fills_form else ""
        headers = {name.lower(): value for name, value in self.headers.items()}
        decision = decide(self.path, headers, self.server.token, form=form)
        if isinstance(decision, Deny):
            unread = {"Connection": "close"} if short is None else {}  # do not wait for the body
            self._respond(HTTPStatus.UNAUTHORIZED, _FORM, {"WWW-Authenticate": "Bearer", **unread})
        elif isinstance(decision, SetCookie):
            self._respond(HTTPStatus.SEE_OTHER, "", {"Location": decision.location, "Set-Cookie": decision.cookie})
        else:
            self._forward(decision.path, self.rfile.read(length) if short is None else short)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Handle every method (`do_GET` etc.) in the same way."""
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _length(self) -> int | None:
        """Return the length of the request's body, or None if the request was refused."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            self._respond(HTTPStatus.LENGTH_REQUIRED, "", {"Connection": "close"})
            return None
        if len(length) > len(str(_MAX_BODY)) or int(length) > _MAX_BODY:
            self._respond(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "", {"Connection": "close"})
            return None
        return int(length)

    def _forward(self, path: str, body: bytes) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=_ANSWER_WITHIN_S)
        with closing(connection) as upstream:
            try:
                upstream.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    forwarded = without_ours(value, self.server.token) if name.lower() == "cookie" else value
                    if forwarded and name.lower() not in (*_HOP_BY_HOP, "authorization"):
                        upstream.putheader(name, forwarded)
                upstream.endheaders(body or None)
                answer = upstream.getresponse()
            except ConnectionRefusedError:
                self._respond(HTTPStatus.SERVICE_UNAVAILABLE, _STARTING, {"Retry-After": "1"})
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._respond(HTTPStatus.BAD_GATEWAY, f"{type(error).__name__}\n", {"Connection": "close"})
            else:
                self._answer(answer)

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in (*_HOP_BY_HOP, "date", "server"):
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

    def _respond(self, status: HTTPStatus, text: str, headers: dict[str, str]) -> None:
        """Send an answer of the proxy itself."""
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


def main(arguments: list[str]) -> int:
    """Serve until a signal arrives (and return 0), or until the command ends (and return the command's status)."""
    parser = argparse.ArgumentParser(
        prog="auth-proxy", description="A program behind a proxy that requires the run's token."
    )
    parser.add_argument("--listen", type=int, required=True, help="port, on all interfaces")
    parser.add_argument("--upstream", type=int, required=True, help="port of the command, on loopback")
    add_passthrough(parser, "command", help="-- and the command to start")
    options = parser.parse_args(arguments)
    token = (Path(os.environ["COMPOSESIM_DIR"]) / "secrets" / "token").read_text().strip()
    proxy = AuthProxy(options.listen, options.upstream, token)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    child = subprocess.Popen(options.command, stdin=subprocess.DEVNULL)
    stopping = threading.Event()

    def leave(*_: object) -> None:
        stopping.set()
        child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    status = _wait(child, stopping)
    proxy.shutdown()
    return 0 if stopping.is_set() else status or 1


def _wait(child: subprocess.Popen[bytes], stopping: threading.Event) -> int:
    """Return the exit status of the command as a shell does, and kill it if it does not end after SIGTERM."""
    while True:
        try:
            return process.shell_status(child.wait(_GRACE_S if stopping.is_set() else None))
        except subprocess.TimeoutExpired:
            child.kill()
