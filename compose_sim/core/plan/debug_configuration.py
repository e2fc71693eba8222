"""The debug configuration of editors for a rank: `attach` prints it, and `init` writes it."""

from __future__ import annotations

import json
from typing import Any

PORT = 5678  # the usual one of debugpy
_ROOT = "${workspaceFolder}"


def launch_file(*, port: int = PORT) -> str:
    """Return `.vscode/launch.json`, which attaches to 127.0.0.1:`port`. Nodes see the project at the same path as this machine."""
    configuration: dict[str, Any] = {
        "name": "composesim: attach to a rank",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": _ROOT, "remoteRoot": _ROOT}],
        "justMyCode": True,
    }
    return json.dumps({"version": "0.2.0", "configurations": [configuration]}, indent=2) + "\n"
