"""Whatever somebody without the token sends to the proxy is refused: no exception, and no hang."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import strategies as st

from compose_sim.plugins.services.node.auth_proxy import AuthProxy, decide, without_ours
from tests.fuzz.strategies import fuzz

SECRET = "5ec3e7" * 10


_HEADER = st.text(max_size=40) | st.sampled_from(
    ["Basic eDo=", "Basic \xff", f"Bearer {SECRET[::-1]}", "composesim-x=1; ;=", 'a="\\', "Basic " + "=" * 9]
)


@fuzz(
    path=st.text(max_size=40) | st.sampled_from(["http://[", "//x", "/?token=\ud800", "/?token=%ff"]),
    cookie=_HEADER,
    authorization=_HEADER,
    form=st.text(max_size=20),
)
def test_requests_without_the_token(path: str, cookie: str, authorization: str, form: str) -> None:
    decision = decide(path, {"cookie": cookie, "authorization": authorization}, SECRET, form=form)
    assert type(decision).__name__ == "Deny"
    without_ours(cookie, SECRET)


@pytest.fixture(scope="module")
def proxy() -> Iterator[AuthProxy]:
    with AuthProxy(0, 9, SECRET) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@fuzz(
    request=st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [
                b"GET / HTTP/1.1\r\n",
                b"POST /?token=\xff HTTP/1.1\r\n",
                b"Content-Length: 99999999999999999999\r\n",
                b"Content-Length: -1\r\n",
                b"Content-Length: 3\r\n",
                b"Cookie: \xff=\x00\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"\r\n",
                b"X" * 7_000,
                b"Authorization: Basic !!\r\n",
            ]
        ),
        max_size=6,
    ).map(b"".join)
)
def test_bytes_sent_to_the_proxy(proxy: AuthProxy, request: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", proxy.server_address[1]), timeout=20) as link:
        answer = b""
        with suppress(OSError):  # it has answered and closed the connection already
            link.sendall(request)
            link.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while data := link.recv(65536):
                answer += data
    assert not re.match(rb"HTTP/\S+ 200", answer)
    assert "Traceback" not in capfd.readouterr().err
