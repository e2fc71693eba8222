"""Assemble the page of a run as one HTML file, and pack a finished run into one ZIP file without secrets.

Nodes write most of what is packed, so nothing in it is trusted: files are opened by `SafeFolder`, names are plain, sizes are
limited, and a dump of the flight recorder, a pickle, is read without running anything and written anew. The same run gives the
same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from compose_sim.core.plan.environment import is_secret, masked
from compose_sim.core.view.page import Message
from compose_sim.core.view.redaction import Redaction, secrets_of
from compose_sim.core.view.thinning import MAX_POINTS, compared, thin
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.node_files import OWN_EVENTS, NodeFiles
from compose_sim.engine.run_folder.record import report_of
from compose_sim.engine.run_folder.safe_files import SafeFolder, UnsafeFileError
from compose_sim.node.shared.authentication import SECRET
from compose_sim.version import __version__
from compose_sim.view.profiles import flight_dumps, plain_dump
from compose_sim.view.reader import PageReader

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = (
    *("model", "elements", "charts", "timeline", "heat", "actions", "cluster", "source", "card", "sections"),
    *("compare", "logs", "live", "place", "main"),
)
_MAX_SPANS, _MAX_LOG_BYTES = 25_000, 500_000  # together less than 2 MB


def report_page(message: Message, against: Message | None = None) -> str:
    """Return the page of a finished run as one file that opens from disk; `against` is shown beside it."""
    shown = thin(message, most_spans=_MAX_SPANS, most_points=MAX_POINTS, most_log_bytes=_MAX_LOG_BYTES)
    if against:
        shown["now"]["against"] = compared(against)
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


_MAX_BYTES_OF_FILE, _MAX_BYTES = 4 << 20, 64 << 20  # before compression
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_OWN = ("docker-compose.yml", ".env", "composesim.log", "supervisor.log")
_OF_NODES = (  # in the order in which they are packed until the bundle is full
    *(("events", ".jsonl"), ("logs", ".log"), ("logs", ".out"), ("logs", ".json")),
    *(("observations", ".stacks"), ("observations", ".pending"), ("observations", ".jsonl")),
)
_SETTLED = (1980, 1, 1, 0, 0, 0)  # the time of every file in the bundle


class _Bundle:
    """Files by name, and why others are not among them."""

    def __init__(self, files: SafeFolder, redaction: Redaction) -> None:
        self._files, self._redaction = files, redaction
        self.packed: dict[str, bytes] = {}
        self.left_out: dict[str, str] = {}

    def add(self, name: str, data: bytes) -> None:
        if sum(map(len, self.packed.values())) + len(data) > _MAX_BYTES:
            self.left_out[name] = "the bundle is full"
        else:
            self.packed[name] = data

    def add_file(self, source: str, name: str) -> None:
        """Add a file of the run as text; of a long one, its first and last lines."""
        if not _PLAIN_NAME.fullmatch(name.rpartition("/")[2].removeprefix(".")):
            self.left_out[repr(name)] = "its name is not plain"
            return
        try:
            data = self._ends(source)
        except (OSError, UnsafeFileError) as error:
            self.left_out[name] = type(error).__name__
            return
        text = self._redaction.text(data.decode("utf-8", "surrogateescape"))
        self.add(name, text.encode("utf-8", "surrogateescape"))

    def add_flight(self, source: str, name: str) -> None:
        """Add a dump of torch's flight recorder, with plain values alone: whoever reads it runs nothing of it."""
        try:
            self.add(name, plain_dump(self._files, source, self._redaction))
        except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
            self.left_out[name] = f"{type(error).__name__}: {error}"[:200]

    def _ends(self, source: str) -> bytes:
        size = os.fstat(descriptor := self._files.open_file(source)).st_size
        with os.fdopen(descriptor, "rb") as file:
            if size <= _MAX_BYTES_OF_FILE:
                return file.read(_MAX_BYTES_OF_FILE)
            first = file.read(_MAX_BYTES_OF_FILE // 2)
            file.seek(size - _MAX_BYTES_OF_FILE // 2)
            last = file.read(_MAX_BYTES_OF_FILE // 2)
        # Whole lines: the rest of a secret that is cut in two would not be found.
        first, last = first[: first.rfind(b"\n") + 1], last[last.find(b"\n") + 1 :]
        return first + f"[composesim: {size - len(first) - len(last)} bytes are left out]\n".encode() + last


def bundle(folder: RunFolder) -> bytes:
    """Return the ZIP file of a finished run."""
    files, plan = folder.files, folder.read_plan()
    settings = files.read_text(".env") if files.status(".env") else ""
    words = folder.read_command()[1] if files.status("command.json") else ()
    environments = [*_environments(plan.to_dict()), _assignments(settings), os.environ]
    own = {folder.read_token(), _own_secret(files)}
    variables = {name for environment in environments[:-1] for name in environment if is_secret(name)}
    redaction = Redaction(own | secrets_of(environments, words), variables)
    report = report_of(folder)
    made = _Bundle(files, redaction)
    made.add("report.json", _json(redaction.value(report.to_dict())))
    made.add("report.html", report_page(redaction.value(PageReader(folder).read())).encode("utf-8", "replace"))
    made.add("plan.json", _json(redaction.value(masked(plan))))
    made.add("command.json", _json({"words": redaction.words(words)}))
    for name in _OWN:
        if files.status(name):
            made.add_file(name, f"rendered/{name}" if name in _OWN[:2] else name)
    found = NodeFiles(files)
    if files.status(OWN_EVENTS):
        made.add_file(OWN_EVENTS, "events/composesim.jsonl")
    for kind, suffix in _OF_NODES:
        for name in found.names(kind, suffix):
            if name != "events/composesim.jsonl":  # a node pretends to be composesim
                made.add_file(name, f"{kind}/{name.rpartition('/')[2]}")
    for name in flight_dumps(files):
        made.add_flight(name, f"flight/{name.rpartition('/')[2]}")
    about = {"composesim": __version__, "run": folder.name, "versions": dict(report.versions or {})}
    made.packed["bundle.json"] = _json({"schema_version": 1, **about, "left_out": made.left_out})
    return _zipped(made.packed)


def _environments(value: Any) -> Iterator[Mapping[str, str]]:
    """Yield every environment inside the values of a plan."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key == "environment":
                yield each
            else:
                yield from _environments(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _environments(each)


def _assignments(settings: str) -> dict[str, str]:
    pairs = (line.removeprefix("export ").partition("=") for line in settings.splitlines())
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


def _own_secret(files: SafeFolder) -> str:
    try:
        return files.read_text(SECRET).strip()
    except (OSError, UnsafeFileError):  # it belongs to the user of the nodes
        return ""


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _zipped(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted(files.items()):
            member = zipfile.ZipInfo(name, _SETTLED)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(member, data)
    return target.getvalue()
