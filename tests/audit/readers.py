"""What a terminal and the runner of a GitHub Actions job would do with the output of a command."""

from __future__ import annotations

import re

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NEW = re.compile(r"::([\w-]+)(?: [^:]*)?::")
_OLD = re.compile(r"##\[([\w-]+)(?: [^\]]*)?\]")
_KNOWN = {"add-mask", "add-path", "debug", "error", "group", "notice", "save-state", "set-env", "set-output", "warning"}


def control_characters(output: str) -> list[str]:
    """The characters in the output of a command that act on a terminal, apart from colors and lines."""
    return _CONTROL.findall(_COLORS.sub("", output.replace("\r\n", "\n")))


def workflow_commands_in(output: str) -> list[str]:
    """The lines that a runner executes: `::name::` at the beginning of a line, `##[name]` anywhere, unless it is stopped."""
    executed, token = [], ""
    for line in output.splitlines():
        match = _NEW.match(line.lstrip()) or _OLD.search(line)
        name = match[1] if match else ""
        if token:
            token = "" if name == token else token
        elif name == "stop-commands":
            token = line.rpartition("::")[2]
        elif name in _KNOWN:
            executed.append(line)
    assert not token, "the runner executes no command of any later step of this job"
    return executed
