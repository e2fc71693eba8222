"""Drive a headless Chromium through its debugging pipe: one browser, one tab, JSON messages that end with a NUL byte."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from tests.builders import PATIENCE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_CHROMIUM_READS_AND_WRITES = (3, 4)  # these descriptors
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Tab:
    """A page in the browser. `errors` holds exceptions and messages of the console that are errors, such as those of the CSP."""

    def __init__(self, commands: int, answers: FileIO) -> None:
        self._commands, self._answers = commands, answers
        self._rest, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")

    def open(self, address: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a page in a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def run(self, code: str) -> Any:
        """Return the value of JavaScript in the page."""
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, code: str) -> None:
        """Wait until JavaScript in the page is true."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.run(f"(() => {{ try {{ return Boolean({code}); }} catch (error) {{ return false; }} }})()"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {code}; errors: {self.errors}")

    def picture(self, file: Path, *, clip: Mapping[str, float] | None = None) -> None:
        """Write a picture of the page, or of this part of it: x, y, width and height in pixels."""
        part = {"clip": {**clip, "scale": 1}} if clip else {}
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True, **part)
        file.write_bytes(base64.b64decode(done["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = self._answers.read(1 << 16)
            assert read, "the browser has ended"
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def a_tab() -> Iterator[Tab]:
    """Start a browser with one tab, and end it."""
    assert CHROMIUM
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *_OPTIONS, f"--user-data-dir={profile}"],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
            pass_fds=_CHROMIUM_READS_AND_WRITES,
            preexec_fn=partial(_move, theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            with os.fdopen(ours_in, "rb", buffering=0) as answers:
                yield Tab(ours_out, answers)
        finally:
            process.kill()
            process.wait()
            os.close(ours_out)


def _move(reading: int, writing: int) -> None:
    """Move the ends of the pipes in the new process; neither may overwrite the other."""
    copies = os.dup(reading), os.dup(writing)
    for copy, wanted in zip(copies, _CHROMIUM_READS_AND_WRITES, strict=True):
        os.dup2(copy, wanted)
