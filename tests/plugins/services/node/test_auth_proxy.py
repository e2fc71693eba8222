"""The requests that pass the proxy, and what reaches the program behind it: decisions first, then real connections."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from compose_sim.plugins.services.node.auth_proxy import Allow, AuthProxy, Deny, SetCookie, decide, without_ours

TOKEN = "5ec3e7" * 10


def cookie_of(decision: object) -> str:
    """Return the cookie that a browser sends back."""
    assert isinstance(decision, SetCookie)
    return decision.cookie.partition(";")[0]


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    "headers",
    [{"authorization": f"Bearer {TOKEN}"}, {"authorization": f"bearer {TOKEN}"}, {"authorization": basic(TOKEN)}],
)
def test_programs_pass_with_the_token_in_a_header(headers: dict[str, str]) -> None:
    assert decide("/data?run=a", headers, TOKEN) == Allow(path="/data?run=a")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/?token=", {}),
        ("/?token=wrong", {}),
        (f"/?token={TOKEN[:-1]}", {}),
        (f"/?Token={TOKEN}", {}),
        ("/", {"authorization": "Bearer "}),
        ("/", {"authorization": "Bearer wrong"}),
        ("/", {"authorization": "Basic !!!"}),
        ("/", {"authorization": "Basic \xe9"}),
        ("http://[", {"authorization": f"Bearer {TOKEN}"}),
        ("/", {"authorization": basic("wrong")}),
        ("/", {"cookie": "composesim=1"}),
        ("/", {"cookie": f"token={TOKEN}"}),
        ("/", {"cookie": "\x00=;;"}),
    ],
)
def test_nobody_else_passes(path: str, headers: dict[str, str]) -> None:
    assert decide(path, headers, TOKEN) == Deny()


def test_an_empty_token_lets_nobody_in() -> None:
    """An empty token file must not let everybody in."""
    assert decide("/?token=", {"authorization": "Bearer "}, "") == Deny()


def test_a_link_gives_a_cookie_and_leaves_no_token_behind() -> None:
    entered = decide(f"/graph?a=1&token={TOKEN}&b=x%20y", {}, TOKEN)

    assert isinstance(entered, SetCookie)
    assert entered.location == "/graph?a=1&b=x+y"
    assert TOKEN not in entered.cookie
    assert "HttpOnly" in entered.cookie
    assert "SameSite=Lax" in entered.cookie
    cookie = cookie_of(entered)
    assert decide("/graph", {"cookie": f"other=1; {cookie}"}, TOKEN) == Allow(path="/graph")
    assert decide("/graph", {"cookie": cookie}, "another" + TOKEN) == Deny()
    assert decide("/graph", {"cookie": cookie[:-1]}, TOKEN) == Deny()


@pytest.mark.parametrize(
    "path", ["//elsewhere.example/x", "/\\elsewhere.example/x", "\\/elsewhere.example/x", "http://elsewhere.example/x"]
)
def test_a_link_leads_nowhere_else(path: str) -> None:
    entered = decide(f"{path}?token={TOKEN}", {}, TOKEN)

    assert isinstance(entered, SetCookie)
    assert entered.location in ("/x", "/elsewhere.example/x")


def test_the_form_is_as_good_as_the_link() -> None:
    assert isinstance(decide("/", {}, TOKEN, form=f"token={TOKEN}"), SetCookie)
    assert decide("/", {}, TOKEN, form="token=wrong") == Deny()


def test_the_program_does_not_see_the_proxys_cookie() -> None:
    cookie = cookie_of(decide(f"/?token={TOKEN}", {}, TOKEN))

    assert without_ours(f"a=1; {cookie}; b=2", TOKEN) == "a=1; b=2"


class Echo(BaseHTTPRequestHandler):
    """Answers with the request; for `/endless` without a length."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        said = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body.decode()}
        data = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if self.path == "/endless":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def serve(server: ThreadingHTTPServer) -> int:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return int(server.server_address[1])


@pytest.fixture
def behind() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        yield server
        server.shutdown()


@pytest.fixture
def gate(behind: ThreadingHTTPServer) -> Iterator[http.client.HTTPConnection]:
    """A connection to a proxy in front of the echo server."""
    with AuthProxy(0, serve(behind), TOKEN) as server:
        connection = http.client.HTTPConnection("127.0.0.1", serve(server), timeout=30)
        yield connection
        connection.close()
        server.shutdown()


def ask(
    gate: http.client.HTTPConnection, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    gate.request(method, path, body=body, headers=headers)
    answer = gate.getresponse()
    return answer, answer.read().decode()


def test_a_stranger_is_asked_for_the_token(gate: http.client.HTTPConnection) -> None:
    answer, text = ask(gate, "/secret")

    assert answer.status == 401
    assert '<form method="post">' in text
    assert '"path"' not in text


def test_a_browser_gets_in_with_the_link(gate: http.client.HTTPConnection) -> None:
    """The link, the redirect and the cookie use one connection."""
    entered, _ = ask(gate, f"/page?token={TOKEN}&x=1")
    assert (entered.status, entered.headers["Location"]) == (303, "/page?x=1")
    cookie = entered.headers["Set-Cookie"].partition(";")[0]

    passed, text = ask(gate, "/page?x=1", Cookie=f"theme=dark; {cookie}")

    seen = json.loads(text)
    assert (passed.status, seen["path"], seen["headers"]["Cookie"]) == (200, "/page?x=1", "theme=dark")


def test_what_is_sent_arrives_without_the_token(gate: http.client.HTTPConnection) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": f"Bearer {TOKEN}"}
    answer, text = ask(gate, "/api", "POST", "query=up&n=" + "1" * 100_000, **form)

    seen = json.loads(text)
    assert answer.status == 200
    assert (seen["method"], len(seen["body"])) == ("POST", len("query=up&n=") + 100_000)
    assert TOKEN not in text


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_answer_of_unknown_length_comes_whole(gate: http.client.HTTPConnection, method: str) -> None:
    for _ in range(2):  # the connection stays open
        answer, text = ask(gate, "/endless", method, Authorization=f"Bearer {TOKEN}")
        assert answer.status == 200
        assert (json.loads(text)["path"] if method == "GET" else text) == ("/endless" if method == "GET" else "")


def test_a_strangers_upload_is_not_waited_for(gate: http.client.HTTPConnection) -> None:
    gate.putrequest("POST", "/")
    gate.putheader("Content-Length", "50000000")
    gate.endheaders()

    assert gate.getresponse().status == 401


@pytest.mark.parametrize(("length", "status"), [("many", 411), ("\xb2", 411), (str(1 << 30), 413), ("9" * 5000, 413)])
def test_a_body_has_a_length_and_a_limit(gate: http.client.HTTPConnection, length: str, status: int) -> None:
    gate.putrequest("POST", "/")
    gate.putheader("Content-Length", length)
    gate.endheaders()

    assert gate.getresponse().status == status


def test_before_the_program_listens_the_proxy_answers_503(
    gate: http.client.HTTPConnection, behind: ThreadingHTTPServer
) -> None:
    behind.shutdown()
    behind.server_close()

    answer, text = ask(gate, "/", Authorization=f"Bearer {TOKEN}")

    assert answer.status == 503
    assert "The program is starting." in text
