"""Assemble the page: one HTML file with its styles and scripts, which only they can act on (CSP with their hashes)."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from pathlib import Path

from compose_sim.core.view.page import Message, thin

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("model", "elements", "charts", "timeline", "actions", "cluster", "sections", "logs", "live", "main")
_MOST_SPANS, _MOST_POINTS, _MOST_LOG_BYTES = 25_000, 1_000, 500_000  # together less than 2 MB


def report_page(message: Message) -> str:
    """Return the page of a finished run as one file that opens from disk."""
    shown = thin(message, most_spans=_MOST_SPANS, most_points=_MOST_POINTS, most_log_bytes=_MOST_LOG_BYTES)
    return _page(title=f"{shown['now']['run']} · composesim", data=shown)


def live_page() -> str:
    """Return the page that fetches messages from the server that it came from."""
    return _page(title="composesim", data=None)


def content_policy(*, live: bool) -> str:
    """Return the Content-Security-Policy: nothing but the page's own styles and scripts; live, its own server."""
    style, script = _style(), _script()
    connect = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {connect}script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _page(*, title: str, data: Message | None) -> str:
    template = (_PAGE / "page.html").read_text(encoding="utf-8")
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    values = {
        "POLICY": html.escape(content_policy(live=data is None)),
        "TITLE": html.escape(title),
        "STYLE": _style(),
        "SCRIPT": _script(),
        "DATA": text.replace("<", "\\u003c"),  # no text can end the element that holds it
    }
    for name, value in values.items():  # the data come last: nothing in them is replaced
        template = template.replace(f"/*{name}*/", value, 1)
    return template


@cache
def _style() -> str:
    return (_PAGE / "page.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = ((_PAGE / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    return '"use strict";\n' + "\n".join(parts)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
